import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["build/", "dist/", "src/gen/"] },
  ...tseslint.configs.strictTypeChecked,
  ...tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: { allowDefaultProject: ["eslint.config.js", "examples/*.js"] } },
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      // tsc demands brackets for index signatures.
      "@typescript-eslint/dot-notation": "off",
      "@typescript-eslint/no-non-null-assertion": "error",
      "@typescript-eslint/switch-exhaustiveness-check": ["error", { considerDefaultExhaustiveForUnions: true }],
    },
  },
  {
    files: ["**/*.js"],
    extends: [tseslint.configs.disableTypeChecked],
  },
  {
    files: ["test/**"],
    // node:test's functions return promises that its runner awaits.
    rules: { "@typescript-eslint/no-floating-promises": "off" },
  },
);
