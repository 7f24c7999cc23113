{{/* The chart's name, as a label. As a dependency, the chart has the name of its alias, such as changeFeeds. */}}
{{- define "feedmux.name" -}}
{{- default .Chart.Name .Values.nameOverride | lower | replace "_" "-" | trunc 63 | regexFind "^.*[a-z0-9]" -}}
{{- end -}}

{{/* Names of Services allow no dots, which a release's name may have, and at most 63 characters with what is appended. */}}
{{- define "feedmux.fullname" -}}
{{- $name := include "feedmux.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 50 | regexFind "^.*[a-z0-9]" -}}
{{- end -}}

{{/* Name of the bundled Redis. Kubernetes adds eleven characters to a StatefulSet's name in labels of its pods. */}}
{{- define "feedmux.redisName" -}}
{{- printf "%s-redis" (include "feedmux.fullname" . | trunc 46 | regexFind "^.*[a-z0-9]") -}}
{{- end -}}

{{/* Labels by which selectors find what has a component: `list $ COMPONENT`. With the chart's name, because a release of
another chart may have it twice, or another chart's pods of the same component, such as its Redis. */}}
{{- define "feedmux.selectorOf" -}}
app.kubernetes.io/name: {{ include "feedmux.name" (first .) | quote }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "feedmux.selector" -}}
{{- include "feedmux.selectorOf" (list . "server") -}}
{{- end -}}

{{/* Labels as one map, without a name twice: `list CHARTS SELECTORS USERS…`. Users' labels replace the chart's, later
ones replace earlier ones, and none replaces a label that selectors use. */}}
{{- define "feedmux.mergedLabels" -}}
{{- $users := dict -}}
{{- range rest (rest .) -}}
{{- $users = mergeOverwrite $users (default (dict) .) -}}
{{- end -}}
{{- $users = omit $users "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- toYaml (mergeOverwrite (dict) (first .) $users (index . 1)) -}}
{{- end -}}

{{/* Labels of an object: `list $ OWN USERS`. OWN are labels that selectors of the chart use, USERS the object's values. */}}
{{- define "feedmux.labelsOf" -}}
{{- $root := first . -}}
{{- $charts := dict "helm.sh/chart" (printf "%s-%s" (trunc 40 $root.Chart.Name) $root.Chart.Version | replace "+" "_") -}}
{{- $_ := set $charts "app.kubernetes.io/name" (include "feedmux.name" $root) -}}
{{- $_ := set $charts "app.kubernetes.io/instance" $root.Release.Name -}}
{{- $_ := set $charts "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $charts "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- include "feedmux.mergedLabels" (list $charts (index . 1) $root.Values.commonLabels (index . 2)) -}}
{{- end -}}

{{- define "feedmux.labels" -}}
{{- include "feedmux.labelsOf" (list . (dict) (dict)) -}}
{{- end -}}

{{/* Labels of a pod: `list $ SELECTORS`. Without the chart's version, with which every upgrade would restart the pods. */}}
{{- define "feedmux.podLabels" -}}
{{- $values := (first .).Values -}}
{{- include "feedmux.mergedLabels" (list (dict) (index . 1) $values.commonLabels $values.podLabels) -}}
{{- end -}}

{{/* What all pods of the release share: who they are, and where they run. */}}
{{- define "feedmux.pod" -}}
serviceAccountName: {{ include "feedmux.serviceAccount" . | quote }}
enableServiceLinks: false
{{- with concat (default (list) (default (dict) .Values.global).imagePullSecrets) .Values.imagePullSecrets }}
imagePullSecrets:
  {{- $names := list }}
  {{- range . }}
  {{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . (dict)) "name") .) }}
  {{- end }}
  {{- range uniq $names }}
  - name: {{ quote . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "feedmux.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "feedmux.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image, from the registry that a chart above names for all of its charts: `list $ IMAGE`. */}}
{{- define "feedmux.fromRegistry" -}}
{{- with (default (dict) (first .).Values.global).imageRegistry -}}
{{ trimSuffix "/" . }}/{{ regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" (last $) "" }}
{{- else -}}
{{ last . }}
{{- end -}}
{{- end -}}

{{- define "feedmux.image" -}}
{{- $version := printf ":%s" (default .Chart.AppVersion .Values.image.tag) -}}
{{- if .Values.image.digest }}{{ $version = printf "@%s" .Values.image.digest }}{{ end -}}
{{- include "feedmux.fromRegistry" (list . (print .Values.image.repository $version)) -}}
{{- end -}}

{{/* Secret with the server's certificate; empty without TLS. */}}
{{- define "feedmux.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{ include "feedmux.fullname" . }}-tls
{{- else -}}
{{ .Values.tls.existingSecret }}
{{- end -}}
{{- end -}}

{{/* TLS files of the sources, as the sources of a projected volume; empty without any. */}}
{{- define "feedmux.sourceFiles" -}}
{{- $files := list -}}
{{- range $name, $source := .Values.sources -}}
{{- with $source.caSecret -}}
{{- $item := dict "key" "ca.crt" "path" (printf "%s/ca.crt" $name) -}}
{{- $files = append $files (dict "secret" (dict "name" . "items" (list $item))) -}}
{{- end -}}
{{- with $source.certificateSecret -}}
{{- if .name -}}
{{- $item := dict "key" .key "path" (printf "%s/client.pem" $name) -}}
{{- $files = append $files (dict "secret" (dict "name" .name "items" (list $item))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $files -}}
{{- toYaml $files -}}
{{- end -}}
{{- end -}}

{{/* Secret and key of Redis's password, as a secretKeyRef; empty without a password. The bundled Redis always has one. */}}
{{- define "feedmux.redisPassword" -}}
{{- with .Values.redis.passwordSecret -}}
{{- if .name -}}
{name: {{ .name | quote }}, key: {{ .key | quote }}}
{{- else if $.Values.redis.bundled.enabled -}}
{name: {{ include "feedmux.redisName" $ }}, key: password}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The restricted profile of Pod Security, for every container. */}}
{{- define "feedmux.containerSecurity" -}}
{{- $fields := dict -}}
{{- if .Values.securityContext.enabled -}}
{{- $fields = dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- end -}}
{{- range $name, $value := .Values.securityContext.container -}}
{{- $_ := set $fields $name $value -}}
{{- end -}}
{{- toYaml $fields -}}
{{- end -}}

{{/* And for every pod: `list $ USER`, the id of the user and the group. */}}
{{- define "feedmux.podSecurity" -}}
{{- $values := (first .).Values.securityContext -}}
{{- $fields := dict -}}
{{- if $values.enabled -}}
{{- $fields = dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if $values.userIds -}}
{{- $id := int (last .) -}}
{{- $fields = merge $fields (dict "runAsUser" $id "runAsGroup" $id "fsGroup" $id) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $values.pod -}}
{{- $_ := set $fields $name $value -}}
{{- end -}}
{{- toYaml $fields -}}
{{- end -}}

{{/* Address families of a Service. */}}
{{- define "feedmux.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Cores of a Kubernetes quantity, such as 500m. */}}
{{- define "feedmux.cores" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text }}{{ divf (float64 (trimSuffix "m" $text)) 1000 }}{{ else }}{{ float64 $text }}{{ end -}}
{{- end -}}

{{/* Bytes of a Kubernetes quantity, such as 2Gi. */}}
{{- define "feedmux.bytes" -}}
{{- if kindIs "string" . -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $unit := trimPrefix $number . -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- mulf $number (get $units $unit) | int64 -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end -}}

{{- define "feedmux.scaling" -}}
scaleDown:
  # Scale down slowly: each server that ends moves its clients to other servers.
  stabilizationWindowSeconds: 600
  policies:
    - {type: Pods, value: 1, periodSeconds: 300}
{{- end -}}

{{/* PromQL matchers of the release's series, by the labels that its ServiceMonitor adds. */}}
{{- define "feedmux.matchers" -}}
{{ printf "namespace=%q,service=%q" .Release.Namespace (printf "%s-headless" (include "feedmux.fullname" .)) }}
{{- end -}}

{{/* Name of an object, and its namespace if that is not the release's: `list $ NAMESPACE NAME`. */}}
{{- define "feedmux.metadataIn" -}}
{{- if index . 1 -}}
# Releases with the same name in different namespaces may share this one.
name: {{ printf "%s-%s" (index . 0).Release.Namespace (index . 2) | quote }}
namespace: {{ index . 1 | quote }}
{{- else -}}
name: {{ index . 2 | quote }}
{{- end -}}
{{- end -}}

{{/* Open sessions of the release. A server without sessions has no series of them, so the second part gives 0 then; if
Prometheus has no data of the release at all, the query returns nothing. */}}
{{- define "feedmux.sessionsQuery" -}}
{{- $of := printf "{%s}" (include "feedmux.matchers" .) -}}
sum(feedmux_subscriber_active{{ $of }}) or 0 * sum(feedmux_ready{{ $of }})
{{- end -}}

{{/* Seconds of a duration of Prometheus, such as 1m30s. */}}
{{- define "feedmux.seconds" -}}
{{- $seconds := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $unit := get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" .) -}}
{{- $seconds = add $seconds (mul $unit (regexFind "[0-9]+" . | int64)) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{/* Bytes that a server may use with its configuration: docs/operations.md, Sizing. */}}
{{- define "feedmux.memory" -}}
{{- $limits := default (dict) .Values.config.limits -}}
{{- $held := add (int64 (default 1073741824 $limits.memory_bytes)) (int64 (default 268435456 $limits.retained_bytes)) -}}
{{- $sessions := mul 60000 (int64 (default 10000 $limits.sessions)) -}}
{{- $callers := add 112000000 (mul 20000 (int64 (default 11000 $limits.connections))) -}}
{{- add $held $sessions $callers 300000000 -}}
{{- end -}}

{{/* Environment variables, volumes and mounts of the servers: the chart's own, then those of the values. */}}
{{- define "feedmux.env" -}}
{{- range $source, $settings := .Values.sources }}
- name: FEEDMUX_SOURCES__{{ upper $source }}__URI
  valueFrom:
    secretKeyRef: {name: {{ quote $settings.uriSecret.name }}, key: {{ quote $settings.uriSecret.key }}}
{{- end }}
{{- with .Values.redis.urlSecret }}
{{- if .name }}
- name: FEEDMUX_REDIS__URL
  valueFrom:
    secretKeyRef: {name: {{ quote .name }}, key: {{ quote .key }}}
{{- end }}
{{- end }}
{{- with include "feedmux.redisPassword" . }}
- name: FEEDMUX_REDIS__PASSWORD
  valueFrom:
    secretKeyRef: {{ . }}
{{- end }}
{{- with .Values.env }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "feedmux.volumeMounts" -}}
- {name: config, mountPath: /etc/feedmux/config, readOnly: true}
# Mount directories, not single files: a mounted file would not follow changes of its ConfigMap or Secret.
- {name: tenants, mountPath: /etc/feedmux/tenants, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.positions.keySecret.name }}
- {name: positions, mountPath: /etc/feedmux/positions, readOnly: true}
{{- end }}
{{- if include "feedmux.tlsSecret" . }}
- {name: tls, mountPath: /etc/feedmux/tls, readOnly: true}
{{- end }}
{{- if .Values.tls.clientCaSecret }}
- {name: client-ca, mountPath: /etc/feedmux/client-ca, readOnly: true}
{{- end }}
{{- if .Values.redis.caSecret }}
- {name: redis-ca, mountPath: /etc/feedmux/redis-ca, readOnly: true}
{{- end }}
{{- if include "feedmux.sourceFiles" . }}
- {name: sources, mountPath: /etc/feedmux/sources, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "feedmux.volumes" -}}
- name: config
  configMap: {name: {{ include "feedmux.fullname" . | quote }}}
- name: tenants
  {{- if .Values.tenants.existingSecret }}
  secret: {secretName: {{ quote .Values.tenants.existingSecret }}}
  {{- else }}
  configMap: {name: {{ default (printf "%s-tenants" (include "feedmux.fullname" .)) .Values.tenants.existingConfigMap | quote }}}
  {{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with include "feedmux.tlsSecret" . }}
- name: tls
  secret: {secretName: {{ quote . }}}
{{- end }}
{{- with .Values.tls.clientCaSecret }}
- name: client-ca
  secret: {secretName: {{ quote . }}}
{{- end }}
{{- with .Values.positions.keySecret.name }}
- name: positions
  secret: {secretName: {{ quote . }}}
{{- end }}
{{- with .Values.redis.caSecret }}
- name: redis-ca
  secret: {secretName: {{ quote . }}}
{{- end }}
{{- with include "feedmux.sourceFiles" . }}
- name: sources
  projected:
    sources: {{- . | nindent 6 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Checks that the schema cannot express: values that exclude or require each other. */}}
{{- define "feedmux.check" -}}
{{- if not (regexMatch "^[a-z]" (include "feedmux.fullname" .)) -}}
{{- fail (printf "fullnameOverride: set a name that begins with a letter; %s begins with a digit, which Kubernetes does not allow in the names of Services" (include "feedmux.fullname" .)) -}}
{{- end -}}
{{- if not .Values.sources -}}
{{- fail "sources: name at least one MongoDB deployment, e.g. --set sources.main.uriSecret.name=mongodb --set sources.main.uriSecret.key=uri" -}}
{{- end -}}
{{- $redis := list -}}
{{- if .Values.redis.url }}{{ $redis = append $redis "redis.url" }}{{ end -}}
{{- if .Values.redis.urlSecret.name }}{{ $redis = append $redis "redis.urlSecret" }}{{ end -}}
{{- if .Values.redis.bundled.enabled }}{{ $redis = append $redis "redis.bundled.enabled" }}{{ end -}}
{{- if and .Values.redis.bundled.enabled (or .Values.redis.username .Values.redis.caSecret) -}}
{{- fail "redis.bundled: it has only the user `default`, and no TLS; leave redis.username and redis.caSecret empty" -}}
{{- end -}}
{{- /* URLs that the chart renders elsewhere than in Secrets must have no credentials. No message has the URL itself; the
schema checks no pattern of them, because Helm would print the URL. */ -}}
{{- $urls := dict "redis.url" (dict "value" .Values.redis.url "form" "^((redis|rediss)([+](sentinel|cluster))?|unix)://." "example" "redis://HOST:6379/0" "instead" "use redis.passwordSecret, or redis.urlSecret for the whole URL") -}}
{{- $_ := set $urls "config.dead_letters.uri" (dict "value" (default (dict) .Values.config.dead_letters).uri "instead" "set FEEDMUX_DEAD_LETTERS__URI in `env` from a Secret") -}}
{{- $_ := set $urls "config.jwt.jwks_url" (dict "value" (default (dict) .Values.config.jwt).jwks_url "instead" "set FEEDMUX_JWT__JWKS_URL in `env` from a Secret") -}}
{{- $_ := set $urls "autoscaling.keda.serverAddress" (dict "value" .Values.autoscaling.keda.serverAddress "form" "^https?://." "example" "http://prometheus.monitoring:9090" "instead" "use autoscaling.keda.authentication") -}}
{{- range $name, $url := $urls -}}
{{- with $url.value -}}
{{- if and $url.form (not (regexMatch $url.form .)) -}}
{{- fail (printf "%s: it is no URL of a known form, such as %s" $name $url.example) -}}
{{- end -}}
{{- $rest := trimPrefix (regexFind "^[a-zA-Z0-9+.-]+://" .) . -}}
{{- if or (regexMatch "(?s):.*@" $rest) (regexMatch "(?is)[?#].*(pass|password|passwd|passphrase|pwd|secret|token|api_?key|sig|signature)(=|:|%3a|%3d)" $rest) -}}
{{- fail (printf "%s: it has a password, which everybody who reads ConfigMaps would see; %s" $name $url.instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne (len $redis) 1 -}}
{{- fail (printf "redis: set exactly one of redis.url, redis.urlSecret and redis.bundled.enabled; set now: %s" (ternary "none" (join ", " $redis) (empty $redis))) -}}
{{- end -}}
{{- $tenants := list -}}
{{- if .Values.tenants.inline }}{{ $tenants = append $tenants "tenants.inline" }}{{ end -}}
{{- if .Values.tenants.existingConfigMap }}{{ $tenants = append $tenants "tenants.existingConfigMap" }}{{ end -}}
{{- if .Values.tenants.existingSecret }}{{ $tenants = append $tenants "tenants.existingSecret" }}{{ end -}}
{{- if ne (len $tenants) 1 -}}
{{- fail (printf "tenants: set exactly one of tenants.inline, tenants.existingConfigMap and tenants.existingSecret; set now: %s" (ternary "none" (join ", " $tenants) (empty $tenants))) -}}
{{- end -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled -}}
{{- fail "tls: set tls.existingSecret or tls.certManager.enabled, not both" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef.name: set the name of the Issuer that signs the certificate" -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecret (not (include "feedmux.tlsSecret" .)) -}}
{{- fail "tls.clientCaSecret: client certificates need TLS; set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.service.mtlsPort (not .Values.tls.clientCaSecret) -}}
{{- fail "service.mtlsPort: set tls.clientCaSecret, the authorities of the client certificates that this port requires" -}}
{{- end -}}
{{- if and .Values.service.mtlsPort (eq (int .Values.service.mtlsPort) (int .Values.service.port)) -}}
{{- fail "service.mtlsPort: choose another port than service.port" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor: set metrics.enabled, which opens the port" -}}
{{- end -}}
{{- with .Values.metrics.prometheusRule -}}
{{- if and .enabled (not $.Values.metrics.enabled) (not .matchers) -}}
{{- fail "metrics.prometheusRule: set metrics.enabled, which opens the port, or metrics.prometheusRule.matchers" -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if and .enabled .keda.enabled -}}
{{- fail "autoscaling: set autoscaling.enabled or autoscaling.keda.enabled, not both; KEDA creates a HorizontalPodAutoscaler itself" -}}
{{- end -}}
{{- if and (or .enabled .keda.enabled) (not (default (dict) $.Values.resources.requests).cpu) -}}
{{- fail "autoscaling: set resources.requests.cpu, of which autoscaling.cpuPercent is a percentage" -}}
{{- end -}}
{{- if and .keda.enabled (not .keda.serverAddress) -}}
{{- fail "autoscaling.keda.serverAddress: set the URL of Prometheus, for example http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if and .keda.enabled (not .keda.query) (not $.Values.metrics.enabled) -}}
{{- fail "autoscaling.keda: set metrics.enabled, which opens the port, or autoscaling.keda.query" -}}
{{- end -}}
{{- if and .keda.authentication.modes (not .keda.authentication.name) -}}
{{- fail "autoscaling.keda.authentication.name: set the name of the TriggerAuthentication" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.sessions.enabled (not .Values.metrics.enabled) -}}
{{- fail "autoscaling.sessions: set metrics.enabled, which opens the port" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling: minReplicas is above maxReplicas; lower minReplicas or raise maxReplicas" -}}
{{- end -}}
{{- if and (eq .Values.service.ipFamilyPolicy "SingleStack") (gt (len .Values.service.ipFamilies) 1) -}}
{{- fail "service.ipFamilies: a Service of ipFamilyPolicy SingleStack has one family; name one, or set PreferDualStack or RequireDualStack" -}}
{{- end -}}
{{- range $name := list "loadBalancerClass" "loadBalancerSourceRanges" -}}
{{- if and (get $.Values.service $name) (ne $.Values.service.type "LoadBalancer") -}}
{{- fail (printf "service.%s: Kubernetes accepts this only with service.type LoadBalancer, and it is %s" $name $.Values.service.type) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "nodePort" "externalTrafficPolicy" -}}
{{- if and (get $.Values.service $name) (eq $.Values.service.type "ClusterIP") -}}
{{- fail (printf "service.%s: Kubernetes accepts this only with service.type NodePort or LoadBalancer, and it is ClusterIP" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.grpcRoute.enabled (not .Values.grpcRoute.parentRefs) -}}
{{- fail "grpcRoute.parentRefs: name at least one Gateway" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host" -}}
{{- end -}}
{{- with .Values.metrics.serviceMonitor -}}
{{- if and .scrapeTimeout (gt (int64 (include "feedmux.seconds" .scrapeTimeout)) (int64 (include "feedmux.seconds" .interval))) -}}
{{- fail (printf "metrics.serviceMonitor.scrapeTimeout: %s is longer than the interval, %s; Prometheus rejects that" .scrapeTimeout .interval) -}}
{{- end -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if eq (empty .maxUnavailable) (empty .minAvailable) -}}
{{- fail (printf "podDisruptionBudget: set exactly one of maxUnavailable and minAvailable, and the other to \"\"; %s set now" (ternary "none is" "both are" (empty .maxUnavailable))) -}}
{{- end -}}
{{- $scaled := or $.Values.autoscaling.enabled $.Values.autoscaling.keda.enabled -}}
{{- $least := ternary $.Values.autoscaling.minReplicas $.Values.replicas $scaled -}}
{{- $stays := int (default 0 .minAvailable) -}}
{{- if kindIs "string" .minAvailable -}}
{{- $stays = divf (mulf (trimSuffix "%" .minAvailable) $least) 100 | ceil | int -}}
{{- end -}}
{{- if and .enabled .minAvailable (ge $stays (int $least)) -}}
{{- fail (printf "podDisruptionBudget.minAvailable: %v of %v servers leaves none that may be evicted, so that nodes could not be drained; lower it, or run more servers" .minAvailable $least) -}}
{{- end -}}
{{- end -}}
{{- with .Values.serviceAccount -}}
{{- if and .annotations (not .create) -}}
{{- fail "serviceAccount.annotations: the chart annotates only the account that it creates; set serviceAccount.create, or annotate the account yourself" -}}
{{- end -}}
{{- end -}}
{{- range list (list "env" "feedmux.env" "name") (list "extraVolumes" "feedmux.volumes" "name") (list "extraVolumeMounts" "feedmux.volumeMounts" "mountPath") -}}
{{- $value := first . -}}
{{- $field := last . -}}
{{- $seen := list -}}
{{- range include (index . 1) $ | fromYamlArray -}}
{{- $one := get . $field | trimSuffix "/" -}}
{{- if has $one $seen -}}
{{- fail (printf "%s: the %s %s is there twice, or the chart itself uses it; choose another one" $value $field (get . $field)) -}}
{{- end -}}
{{- $seen = append $seen $one -}}
{{- end -}}
{{- end -}}
{{- $volumes := list -}}
{{- range include "feedmux.volumes" . | fromYamlArray }}{{ $volumes = append $volumes .name }}{{ end -}}
{{- $mounts := dict "extraVolumeMounts" .Values.extraVolumeMounts -}}
{{- $containers := list "feedmux" -}}
{{- range .Values.initContainers -}}
{{- if has .name $containers -}}
{{- fail (printf "initContainers: the name %s is there twice, or the chart itself uses it; choose another one" .name) -}}
{{- end -}}
{{- $containers = append $containers .name -}}
{{- $_ := set $mounts (printf "initContainers (%s)" .name) (default (list) .volumeMounts) -}}
{{- end -}}
{{- range $value, $of := $mounts -}}
{{- range $of -}}
{{- if not (has .name $volumes) -}}
{{- fail (printf "%s: there is no volume %s; add it to extraVolumes" $value .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with (default (dict) .Values.resources.limits).memory -}}
{{- $needed := int64 (include "feedmux.memory" $) -}}
{{- if lt (int64 (include "feedmux.bytes" .)) $needed -}}
{{- fail (printf "resources.limits.memory: %v is less than the servers may use by config.limits, %d Mi. Raise it, or lower memory_bytes, retained_bytes, sessions or connections there (docs/operations.md, Sizing)" . (div $needed 1048576)) -}}
{{- end -}}
{{- end -}}
{{- range $path, $resources := dict "resources" .Values.resources "redis.bundled.resources" .Values.redis.bundled.resources -}}
{{- $requests := default (dict) (default (dict) $resources).requests -}}
{{- $limits := default (dict) (default (dict) $resources).limits -}}
{{- $advice := "which Kubernetes rejects: lower the request, too" -}}
{{- if and $requests.memory $limits.memory -}}
{{- if gt (int64 (include "feedmux.bytes" $requests.memory)) (int64 (include "feedmux.bytes" $limits.memory)) -}}
{{- fail (printf "%s.requests.memory: %v is more than the limit of %v, %s" $path $requests.memory $limits.memory $advice) -}}
{{- end -}}
{{- end -}}
{{- if and $requests.cpu $limits.cpu -}}
{{- if gt (float64 (include "feedmux.cores" $requests.cpu)) (float64 (include "feedmux.cores" $limits.cpu)) -}}
{{- fail (printf "%s.requests.cpu: %v is more than the limit of %v, %s" $path $requests.cpu $limits.cpu $advice) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $option, $instead := include "feedmux.chartsOptions" . | fromYaml -}}
{{- $section := splitList "." $option | first -}}
{{- $limits := and (eq $section "limits") (hasKey (default (dict) $.Values.config.limits) (trimPrefix "limits." $option)) -}}
{{- if or $limits (and (ne $section "limits") (hasKey $.Values.config $section)) -}}
{{- fail (printf "config.%s: the chart sets this itself; use %s" (ternary $option $section $limits) $instead) -}}
{{- end -}}
{{- $inner := sub (splitList "." $option | len) 1 | int -}}
{{- $variables := printf "(?i)^FEEDMUX_%s%s$" ($option | replace "." "(__" | replace "*" "([^_]|_[^_])+") (repeat $inner ")?") -}}
{{- range $.Values.env -}}
{{- if regexMatch $variables .name -}}
{{- fail (printf "env: %s: the chart sets this itself; use %s" .name $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $variables := dict "env" .Values.env -}}
{{- range .Values.initContainers }}{{ $_ := set $variables (printf "initContainers (%s)" .name) (default (list) .env) }}{{ end -}}
{{- range $value, $of := $variables -}}
{{- range $of -}}
{{- if and .value .valueFrom -}}
{{- fail (printf "%s: %s has both value and valueFrom; remove one" $value .name) -}}
{{- end -}}
{{- if and (kindIs "map" .valueFrom) (ne (len .valueFrom) 1) -}}
{{- fail (printf "%s: the valueFrom of %s names %d sources, and Kubernetes requires one" $value .name (len .valueFrom)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if gt (len .) 2 -}}
{{- fail (printf "extraVolumes: %s has more than one source: %s" .name (omit . "name" | keys | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- range .Values.envFrom -}}
{{- if ne (omit . "prefix" | len) 1 -}}
{{- fail "envFrom: name a configMapRef or a secretRef in each item, not both" -}}
{{- end -}}
{{- end -}}
{{- if gt (printf "tenants:%s" (toYaml .Values.tenants.inline | nindent 2) | len) 1048576 -}}
{{- fail "tenants.inline: it has more than 1 MiB, which Kubernetes does not accept in a ConfigMap; remove entries" -}}
{{- end -}}
{{- end -}}

{{/* Options of the configuration that the chart sets, or that it reads from the values, and what to use instead. `*` is
any name. The check rejects them in `env`, where they would pass by the chart, and all but those of config in `config`. */}}
{{- define "feedmux.chartsOptions" -}}
"sources.*.(uri|id)": the values of `sources`; `env` sets further options
"redis.(url|username|password|key_prefix|ca_file)": the values of `redis`; `env` sets further options
positions.*: positions.keySecret
listen.*: the values of `service`, `operator` and `metrics`, and tls.acceptPlaintext
tls.*: the values of `tls`
tenants_file: the values of `tenants`
operator_key_hashes: operator.keyHashes
limits.drain_s: drain.seconds, from which the chart also derives the pod's termination grace period
limits.(memory_bytes|retained_bytes|sessions|connections|drain_delay_s): config.limits, from which the chart also derives what a pod needs
{{- end -}}

{{/* The server's configuration, without secrets: the servers read secrets from the environment. */}}
{{- define "feedmux.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $sources := dict -}}
{{- range $name, $source := .Values.sources -}}
{{- $sources = set $sources $name (ternary (dict "id" $source.id) (dict) (not (empty $source.id))) -}}
{{- end -}}
{{- $config = set $config "sources" $sources -}}
{{- $redis := dict -}}
{{- if .Values.redis.bundled.enabled -}}
{{- $redis = set $redis "url" (printf "redis://%s:6379/0" (include "feedmux.redisName" .)) -}}
{{- else if .Values.redis.url -}}
{{- $redis = set $redis "url" .Values.redis.url -}}
{{- end -}}
{{- if .Values.redis.username }}{{ $redis = set $redis "username" .Values.redis.username }}{{ end -}}
{{- if .Values.redis.keyPrefix }}{{ $redis = set $redis "key_prefix" .Values.redis.keyPrefix }}{{ end -}}
{{- if .Values.redis.caSecret }}{{ $redis = set $redis "ca_file" "/etc/feedmux/redis-ca/ca.crt" }}{{ end -}}
{{- $config = set $config "redis" $redis -}}
{{- $config = set $config "listen" (dict "data" "0.0.0.0:7117" "operator" "0.0.0.0:7118" "health" "0.0.0.0:7119" "metrics" (ternary "[::]:9117" "127.0.0.1:9117" .Values.metrics.enabled) "accept_plaintext" .Values.tls.acceptPlaintext) -}}
{{- if .Values.service.mtlsPort }}{{ $_ := set $config.listen "data_mtls" "0.0.0.0:7120" }}{{ end -}}
{{- $config = set $config "tenants_file" "/etc/feedmux/tenants/tenants.yaml" -}}
{{- if .Values.positions.keySecret.name -}}
{{- $config = set $config "positions" (dict "key_file" (printf "/etc/feedmux/positions/%s" .Values.positions.keySecret.key)) -}}
{{- end -}}
{{- if include "feedmux.tlsSecret" . -}}
{{- $tls := dict "certificate_file" "/etc/feedmux/tls/tls.crt" "key_file" "/etc/feedmux/tls/tls.key" -}}
{{- if .Values.tls.clientCaSecret }}{{ $tls = set $tls "client_ca_file" "/etc/feedmux/client-ca/ca.crt" }}{{ end -}}
{{- $config = set $config "tls" $tls -}}
{{- end -}}
{{- if .Values.operator.keyHashes -}}
{{- $config = set $config "operator_key_hashes" .Values.operator.keyHashes -}}
{{- end -}}
{{- $limits := mergeOverwrite (dict "drain_s" .Values.drain.seconds) (default (dict) $config.limits) -}}
{{- $config = set $config "limits" $limits -}}
{{- toYaml $config -}}
{{- end -}}
