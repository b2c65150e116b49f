import "./styles/tokens.css";
import "./styles/studio.css";
import "./styles/app.css";

import { mount } from "svelte";

import App from "./App.svelte";
import { preparePlatform } from "./lib/platform";

await preparePlatform();

const target = document.getElementById("app");
if (target === null) throw new Error("index.html has no #app");
mount(App, { target });
