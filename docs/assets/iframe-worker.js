// Browsers start no Worker for a page that is opened as a file, so there the search runs in a hidden frame. This class has
// what the theme's search uses of Worker: postMessage, the event "message", terminate.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(source) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(source, location.href).href;
        script.onload = done;
        script.onerror = failed;
        inside.document.body.append(script);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
