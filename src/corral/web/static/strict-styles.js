// xterm.js writes <style> elements and style attributes, which the page's policy forbids: it allows
// style sheets of our own origin only. The same rules reach the page by way of the object model,
// which a policy leaves to scripts.

(() => {
  const sheets = new WeakMap();
  Object.defineProperty(HTMLStyleElement.prototype, "textContent", {
    set(text) {
      if (!sheets.has(this)) {
        const sheet = new CSSStyleSheet();
        sheets.set(this, sheet);
        document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
      }
      sheets.get(this).replaceSync(text);
    },
  });
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
})();
