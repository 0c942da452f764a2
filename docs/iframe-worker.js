// A browser starts no worker for a page that was opened from a folder. There, the script of a search runs in a hidden
// frame, which answers to the part of the interface of a worker that the pages use.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.frame = frame;
      this.ready = new Promise(loaded => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = loaded;
        inside.document.body.append(script);
      });
    }
    postMessage(message) {
      const { contentWindow } = this.frame;
      const data = structuredClone(message);
      this.ready.then(() => contentWindow.dispatchEvent(new contentWindow.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
