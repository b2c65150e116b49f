import { defineConfig } from "@playwright/test";

/** The page in Debian's Chromium, built with a recorded engine, under the window's own content security policy. */
export default defineConfig({
  testDir: "tests",
  outputDir: "test-results/artifacts",
  fullyParallel: true,
  workers: 2,
  timeout: 30_000,
  reporter: [["list"]],
  use: {
    baseURL: "http://127.0.0.1:4173",
    viewport: { width: 1280, height: 800 },
    launchOptions: {
      executablePath: process.env.HEARTH_CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--force-color-profile=srgb"],
    },
  },
  webServer: {
    command: "npx vite preview --outDir dist-mock",
    url: "http://127.0.0.1:4173",
    reuseExistingServer: !process.env.CI,
  },
});
