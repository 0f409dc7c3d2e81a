// xterm.js writes <style> elements and style attributes, which a strict content security policy
// forbids. Apply the same rules through the CSS object model, which the policy allows.

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
