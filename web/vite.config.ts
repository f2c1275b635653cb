import { defineConfig } from "vite";

// In development the pages come from Vite and the API from a gateway: GATEWAY=http://127.0.0.1:8081 npm run dev
const gateway = process.env.GATEWAY ?? "http://127.0.0.1:8081";
const proxy = Object.fromEntries(
  ["/v1", "/metrics", "/openapi.json", "/docs", "/experiments"].map((path) => [path, { target: gateway }]),
);

export default defineConfig({
  esbuild: { jsx: "automatic" },
  build: {
    target: "es2022",
    modulePreload: false,
    // One script and one style sheet with fixed names: the gateway embeds them by name.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "dashboard.js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "dashboard.css" : "[name][extname]"),
        inlineDynamicImports: true,
      },
    },
  },
  server: { proxy },
  preview: { proxy },
  test: { include: ["src/**/*.test.ts", "src/**/*.test.tsx"] },
} as import("vite").UserConfig);
