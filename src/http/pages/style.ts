/**
 * The style sheet of all pages: system fonts, light and dark colors, windows from 320 pixels. Meets WCAG AA: contrast
 * of at least 4.5 for text and 3 for borders of controls. Controls are 44 pixels high and have a visible focus.
 */
export const STYLE = `
:root { --paper: #fff; --ground: #f3f4f6; --ink: #16181d; --soft: #565c69; --line: #d5d8df; --edge: #737a88; --strong: #1f4b99; --on-strong: #fff; --bad: #9b1c1c; --bad-ground: #fdecec; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #1b1e24; --ground: #121419; --ink: #eceef2; --soft: #a5acb9; --line: #343a45; --edge: #7d8594; --strong: #8ab0f5; --on-strong: #10131a; --bad: #f7a8a8; --bad-ground: #3a1d1f; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere; }
main { max-width: 30rem; margin: 0 auto; min-height: 100vh; padding: 1.5rem 1.25rem 3rem; background: var(--paper); }
main:has(.choices) { max-width: 40rem; }
@media (min-width: 34rem) { main { min-height: 0; margin: 8vh auto 3rem; padding: 2rem; border: 1px solid var(--line); border-radius: .75rem; } }
.brand { margin: 0 0 1.5rem; font-weight: 600; letter-spacing: .02em; color: var(--soft); }
h1 { margin: 0 0 .75rem; font-size: 1.5rem; line-height: 1.25; }
h2 { margin: 2rem 0 .25rem; font-size: 1.125rem; line-height: 1.35; }
h3 { margin: 0; font-size: 1rem; }
p { margin: 0 0 1rem; }
.soft { color: var(--soft); }
.notice { padding: .75rem 1rem; border-left: .25rem solid var(--bad); background: var(--bad-ground); color: var(--bad); }
label { display: block; margin: 1rem 0 .25rem; font-weight: 600; }
input:not([type=checkbox]) { width: 100%; min-height: 2.75rem; padding: .5rem .75rem; border: 1px solid var(--edge); border-radius: .5rem; background: var(--paper); color: var(--ink); font: inherit; }
input:read-only:not([type=checkbox]) { background: var(--ground); }
input + p { margin-top: .375rem; }
fieldset { min-width: 0; margin: 1rem 0 0; padding: .5rem 0 0; border: 0; border-top: 1px solid var(--line); }
legend { float: left; width: 100%; padding: 0 0 .25rem; }
.choices { clear: both; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); column-gap: 1rem; }
.choices label { display: flex; gap: .75rem; align-items: flex-start; min-height: 2.75rem; margin: 0; padding: .375rem 0; font-weight: 400; cursor: pointer; }
.choices input { flex: none; width: 1.25rem; height: 1.25rem; margin: .125rem 0 0 .2rem; accent-color: var(--strong); }
.choices span { min-width: 0; }
code { display: block; font: .875em/1.4 ui-monospace, "SFMono-Regular", Menlo, monospace; color: var(--soft); }
.actions { display: flex; flex-wrap: wrap; gap: .75rem; margin-top: 1.5rem; }
button { flex: 1 0 auto; min-width: 9rem; max-width: 100%; min-height: 2.75rem; padding: .5rem 1rem; border: 1px solid var(--edge); border-radius: .5rem; background: transparent; color: var(--ink); font: inherit; font-weight: 600; cursor: pointer; }
button[hidden] { display: none; }
button.main { border-color: var(--strong); background: var(--strong); color: var(--on-strong); }
a { display: inline-block; padding: .625rem 0; color: var(--strong); }
:focus-visible { outline: .2rem solid var(--strong); outline-offset: .15rem; }
.qr { display: block; width: 100%; max-width: 16rem; height: auto; margin: 1rem 0; border-radius: .5rem; }
ol.codes { columns: 2 12rem; padding-left: 1.5rem; user-select: all; -webkit-user-select: all; }
ol.codes li { break-inside: avoid; } ol.codes code { white-space: nowrap; }
ol.codes code, dd code { color: var(--ink); }
li.held { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: center; justify-content: space-between; padding: .5rem 0; border-top: 1px solid var(--line); }
ul.held { margin: .5rem 0 0; padding: 0; list-style: none; } .held button { flex: none; min-width: 5rem; }
dl { margin: 0 0 1rem; } dt { margin-top: .75rem; color: var(--soft); } dd { margin: 0; }
`

/** The style sheet of Swagger UI: the fonts and light colors of the pages. Swagger UI has no dark mode. */
export const LOOK = `
body { margin: 0; background: #fff; }
.swagger-ui, .swagger-ui .info .title, .swagger-ui .opblock-tag, .swagger-ui .btn, .swagger-ui .opblock .opblock-summary-description { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; }
.swagger-ui .info { margin: 2rem 0; max-width: 50rem; }
.swagger-ui .info .title small { background: #1f4b99; }
.swagger-ui .info .title small.version-stamp { background: #565c69; }
.swagger-ui .info a { color: #1f4b99; }
/* Hides the link to the page's own document, which is not the one to generate clients from. */
.swagger-ui .info hgroup > .link { display: none; }
.swagger-ui .btn.authorize { border-color: #1f4b99; color: #1f4b99; }
.swagger-ui .btn.authorize svg { fill: #1f4b99; }
.swagger-ui .btn.execute { border-color: #1f4b99; background: #1f4b99; }
.swagger-ui .filter label { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-weight: 600; }
.swagger-ui .opblock .opblock-summary { min-height: 2.75rem; }
:focus-visible { outline: .2rem solid #1f4b99; outline-offset: .15rem; }
`

/** The icon: a vault door, in a color for light and dark backgrounds. */
export const ICON =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect x="3" y="3" width="26" height="26" rx="5" fill="#3b6fc4"/><circle cx="16" cy="16" r="7" fill="none" stroke="#fff" stroke-width="3"/><path d="M16 12v8M12 16h8" stroke="#fff" stroke-width="2"/></svg>'
