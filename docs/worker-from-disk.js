// Pages that were opened from a disk may start no worker, and the site's search runs in one. Here the
// worker's script runs in a hidden frame instead, with the worker's messages handed to and fro.
// The script of the search looks for a class of this name.
class IFrameWorker extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.documentElement.append(frame);
    this.inside = frame.contentWindow;
    addEventListener("message", (event) => {
      if (event.source === this.inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
    });
    this.ready = new Promise((resolve) => { this.inside.started = resolve; });
    const page = this.inside.document;
    page.open();
    page.write('<script>postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: window }));</script>');
    page.write(`<script src="${new URL(address, location)}" onload="started()"></script>`);
    page.close();
  }
  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
  terminate() {
    this.inside.frameElement.remove();
  }
}
if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
