/**
 * The style sheet of all pages, with the colors, type and space of the console: light and dark, from 320 pixels.
 * Meets WCAG AA: contrast of at least 4.5 for text and 3 for borders of controls. The pages have few controls, so all
 * are 44 pixels high. The icon is drawn with gradients, because the content security policy allows no images.
 */
export const STYLE = `
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --paper: #fff; --ink: #16181d; --soft: #565d6b; --line: #e1e4e9; --edge: #79808e;
  --accent: #4338ca; --on-accent: #fff; --accent-ground: #eeefff; --bad: #b42318; --bad-ground: #fdeeec;
  --shadow: 0 1px 2px #10131a14, 0 8px 24px #10131a1f;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; --mono: ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace;
  --text-s: .8125rem; --text-m: .875rem; --text-l: 1rem; --text-xl: 1.25rem; --text-xxl: 1.5rem;
  --space-1: .25rem; --space-2: .5rem; --space-3: .75rem; --space-4: 1rem; --space-5: 1.5rem; --space-6: 2rem; --space-7: 3rem;
  --round: .375rem;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ground: #0f1115; --paper: #16191f; --ink: #e7e9ee; --soft: #a0a8b7; --line: #2a2f39; --edge: #747d8d;
    --accent: #a9b4fd; --on-accent: #12142b; --accent-ground: #23264a; --bad: #ff9c92; --bad-ground: #3a1c1a;
    --shadow: 0 1px 2px #0008, 0 8px 24px #0009;
  }
}
@media (max-width: 48rem), (pointer: coarse) { :root { --text-m: 1rem; --text-s: .875rem; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: var(--text-m)/1.5 var(--sans); overflow-wrap: anywhere; }
main { max-width: 27rem; min-height: 100vh; margin: 0 auto; padding: var(--space-5) var(--space-4) var(--space-7); background: var(--paper); }
main:has(.choices, ul.held, pre) { max-width: 46rem; }
@media (min-width: 34rem) { main { min-height: 0; margin: 8vh auto var(--space-7); padding: var(--space-6); border: 1px solid var(--line); border-radius: calc(2 * var(--round)); box-shadow: var(--shadow); } main:has(ul.held) { margin-top: var(--space-6); } }
.brand { display: flex; gap: var(--space-2); align-items: center; margin: 0 0 var(--space-5); font-size: var(--text-l); font-weight: 600; }
.brand svg { width: 1.5rem; height: 1.5rem; color: var(--accent); }
h1 { margin: 0 0 var(--space-3); font-size: var(--text-xxl); line-height: 1.25; letter-spacing: -.01em; }
h2 { margin: var(--space-6) 0 var(--space-1); font-size: var(--text-l); line-height: 1.35; }
h3 { margin: 0; font-size: var(--text-m); }
p { margin: 0 0 var(--space-4); }
.soft, .held span, .held time { color: var(--soft); }
.notice { padding: var(--space-3) var(--space-4); border-left: .25rem solid var(--bad); border-radius: var(--round); background: var(--bad-ground); color: var(--bad); }
label { display: block; margin: var(--space-4) 0 var(--space-1); font-weight: 600; }
input:not([type=checkbox]) { width: 100%; min-height: 2.75rem; padding: var(--space-2) var(--space-3); border: 1px solid var(--edge); border-radius: var(--round); background: var(--paper); color: var(--ink); font: inherit; }
input:read-only:not([type=checkbox]) { background: var(--ground); }
input + p { margin-top: var(--space-2); }
fieldset { min-width: 0; margin: var(--space-4) 0 0; padding: var(--space-2) 0 0; border: 0; border-top: 1px solid var(--line); }
legend { float: left; width: 100%; padding: 0 0 var(--space-1); }
.choices { clear: both; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); column-gap: var(--space-4); }
.choices label { display: flex; gap: var(--space-3); align-items: flex-start; min-height: 2.75rem; margin: 0; padding: .375rem 0; font-weight: 400; cursor: pointer; }
.choices input { flex: none; width: 1.25rem; height: 1.25rem; margin: 0 0 0 .2rem; accent-color: var(--accent); }
.choices span { min-width: 0; }
code { font: .9em/1.4 var(--mono); } .choices code, dd code { display: block; } .choices code { color: var(--soft); }
pre { margin: 0 0 var(--space-4); padding: var(--space-3) var(--space-4); border: 1px solid var(--line); border-radius: var(--round); background: var(--ground); font: var(--text-s)/1.6 var(--mono); white-space: pre-wrap; }
.actions { display: flex; flex-wrap: wrap; gap: var(--space-3); margin: var(--space-5) 0 var(--space-4); }
button { flex: 1 0 auto; min-width: 9rem; max-width: 100%; min-height: 2.75rem; padding: var(--space-2) var(--space-4); border: 1px solid var(--edge); border-radius: var(--round); background: var(--paper); color: var(--ink); font: inherit; font-weight: 600; cursor: pointer; }
button:hover { background: var(--accent-ground); }
button[hidden] { display: none; }
button.main { border-color: var(--accent); background: var(--accent); color: var(--on-accent); } button.main:hover { background: color-mix(in srgb, var(--accent), var(--ink) 15%); }
a { display: inline-block; padding: .75rem 0; color: var(--accent); } a:hover { text-decoration-thickness: 2px; }
summary { min-height: 2.75rem; padding: .75rem 0; color: var(--accent); cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.qr { display: block; width: 100%; max-width: 16rem; height: auto; margin: var(--space-4) 0; border-radius: var(--round); }
ol.codes { columns: 2 12rem; padding-left: var(--space-5); user-select: all; -webkit-user-select: all; }
ol.codes li { break-inside: avoid; } ol.codes code { display: block; white-space: nowrap; }
ul.held { margin: var(--space-2) 0 0; padding: 0; border: 1px solid var(--line); border-radius: var(--round); list-style: none; }
li.held { display: flex; flex-wrap: wrap; gap: var(--space-1) var(--space-4); align-items: center; padding: var(--space-2) var(--space-4); } li.held + li.held { border-top: 1px solid var(--line); }
.held div { flex: 1 1 16rem; min-width: 0; } .held strong, .held span, .held time { display: block; } .held button { min-width: 5rem; } .held time { flex: none; font-size: var(--text-s); font-variant-numeric: tabular-nums; } .held > span { flex: 1 1 16rem; min-width: 0; color: var(--ink); }
dl { margin: 0 0 var(--space-4); } dt { margin-top: var(--space-3); color: var(--soft); font-size: var(--text-s); } dd { margin: 0; }
`

/** The style sheet of Swagger UI: the fonts and light colors of the pages. Swagger UI has no dark mode. */
export const LOOK = `
body { margin: 0; background: #fff; }
.swagger-ui, .swagger-ui .info .title, .swagger-ui .opblock-tag, .swagger-ui .btn, .swagger-ui .opblock .opblock-summary-description { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; }
.swagger-ui .info { margin: 2rem 0; max-width: 50rem; }
.swagger-ui .info .title small { background: #4338ca; }
.swagger-ui .info .title small.version-stamp { background: #565d6b; }
.swagger-ui .info a { color: #4338ca; }
/* Hides the link to the page's own document, which is not the one to generate clients from. */
.swagger-ui .info hgroup > .link { display: none; }
.swagger-ui .btn.authorize { border-color: #4338ca; color: #4338ca; }
.swagger-ui .btn.authorize svg { fill: #4338ca; }
.swagger-ui .btn.execute { border-color: #4338ca; background: #4338ca; }
.swagger-ui .filter label { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-weight: 600; }
.swagger-ui .opblock .opblock-summary { min-height: 2.75rem; }
:focus-visible { outline: .2rem solid #4338ca; outline-offset: .15rem; }
`

const svg = (more: string) => '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" ' +
  `stroke-width="2" stroke-linecap="round" stroke-linejoin="round" ${more}><rect width="18" height="18" x="3" y="3" rx="2"/>` +
  '<circle cx="7.5" cy="7.5" r=".5" fill="currentColor"/><path d="m7.9 7.9 2.7 2.7"/>' +
  '<circle cx="16.5" cy="7.5" r=".5" fill="currentColor"/><path d="m13.4 10.6 2.7-2.7"/>' +
  '<circle cx="7.5" cy="16.5" r=".5" fill="currentColor"/><path d="m7.9 16.1 2.7-2.7"/>' +
  '<circle cx="16.5" cy="16.5" r=".5" fill="currentColor"/><path d="m13.4 13.4 2.7 2.7"/><circle cx="12" cy="12" r="2"/></svg>'

/** The logo of all pages: the vault of the package `lucide`, as in the console. */
export const LOGO = svg('aria-hidden="true"')
/** The same in a color for light and dark backgrounds. */
export const ICON = svg('xmlns="http://www.w3.org/2000/svg" color="#6d63e8"')
