/**
 * Loads the page anew where a part of the console did not come: a node that is full or slow cuts
 * connections off, and without one of its modules nothing of the console starts.
 */

const AGAIN_MS = 2000;

addEventListener(
  "error",
  (event) => {
    // What a page loads later, of a node that has gone meanwhile, is not missed at the start.
    if (!(event.target instanceof HTMLScriptElement) || event.target.type !== "module") return;
    document.querySelector("main p").textContent =
      "A part of the console did not come. It is loaded again in two seconds.";
    setTimeout(() => location.reload(), AGAIN_MS);
  },
  true, // such an event does not bubble
);
