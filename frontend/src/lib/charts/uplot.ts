import "./locale-guard";
import "uplot/dist/uPlot.min.css";

export { default as UPlot } from "uplot";
export type { default as uPlot } from "uplot";
