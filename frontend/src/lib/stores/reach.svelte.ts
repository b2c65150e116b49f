import type { Largest } from "$lib/bindings/Largest";
import { platform } from "$lib/platform";

import { Asked } from "./asked.svelte";
import { plan } from "./plan.svelte";

/** How far the computer goes that is planned for: asked only while somebody looks. */
class Reach {
  asked = new Asked<Largest[]>();

  look(): void {
    const request = plan.request();
    if (request === null) return;
    const { shape, stats, hardware } = request;
    void this.asked.ask([plan.draft, shape, stats, hardware], () => platform.largest(request));
  }
}

export const reach = new Reach();
