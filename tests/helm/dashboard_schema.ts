// The type of helm/feedmux/dashboards/feedmux.json: Grafana's own types, which test_dashboard.py fetches.
import type * as grafana from "@grafana/schema";
import type { Options as Stat } from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type {
  FieldConfig,
  Options as TimeSeries,
} from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// JSON has the value of a string enum, and may leave out what a panel's plugin has a default for.
type Json<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Options<T> = T extends object ? { [K in keyof T]?: Options<T[K]> } : T;

type PanelOf<Type, PanelOptions, Custom> = Omit<grafana.Panel, "type" | "options" | "fieldConfig" | "targets"> & {
  type: Type;
  title: string;
  options?: Options<PanelOptions>;
  fieldConfig: Omit<grafana.FieldConfigSource, "defaults"> & {
    defaults: Omit<grafana.FieldConfig, "custom"> & { custom?: Options<Custom> };
  };
  targets: { refId: string; datasource: grafana.DataSourceRef; expr: string; legendFormat: string }[];
};
type Row = Omit<grafana.RowPanel, "type"> & { type: "row" };
type Panel = PanelOf<"stat", Stat, never> | PanelOf<"timeseries", TimeSeries, FieldConfig> | Row;

// Grafana writes a query's `definition`, and `current: {}`, although these types do not allow them.
type Variable = Omit<grafana.VariableModel, "current"> & {
  current: Partial<grafana.VariableOption>;
  definition?: string;
};

export type Dashboard = Json<
  Omit<grafana.Dashboard, "panels" | "templating"> & { panels: Panel[]; templating: { list: Variable[] } }
>;
