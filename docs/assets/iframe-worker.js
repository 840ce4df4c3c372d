// Browsers start no Worker on pages opened from the file system, so there the search runs in a hidden frame instead. It has the
// parts of Worker's interface that the theme's search uses: postMessage, onmessage, addEventListener("message"), terminate.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const deliver = (target, data) => target.dispatchEvent(new MessageEvent("message", { data }));
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.importScripts = (...urls) =>
        urls.reduce(
          (before, source) =>
            before.then(
              () =>
                new Promise((done, failed) => {
                  const script = inside.document.createElement("script");
                  script.src = new URL(source, url);
                  script.onload = () => done();
                  script.onerror = failed;
                  inside.document.body.append(script);
                }),
            ),
          Promise.resolve(),
        );
      this.ready = inside.importScripts(url);
      this.deliver = (data) => this.ready.then(() => deliver(inside, data));
    }
    postMessage(data) {
      this.deliver(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
