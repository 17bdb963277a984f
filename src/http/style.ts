/** The one style sheet of the pages: system fonts, light and dark, readable at 320 pixels and by keyboard alone. */
export const STYLE = `
:root { --paper: #fff; --ground: #f3f4f6; --ink: #16181d; --soft: #565c69; --line: #c9cdd6; --strong: #1f4b99; --on-strong: #fff; --bad: #9b1c1c; --bad-ground: #fdecec; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #1b1e24; --ground: #121419; --ink: #eceef2; --soft: #a5acb9; --line: #3d4350; --strong: #8ab0f5; --on-strong: #10131a; --bad: #f7a8a8; --bad-ground: #3a1d1f; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 30rem; margin: 0 auto; min-height: 100vh; padding: 1.5rem 1.25rem 3rem; background: var(--paper); }
@media (min-width: 34rem) { main { min-height: 0; margin: 8vh auto 3rem; padding: 2rem; border: 1px solid var(--line); border-radius: .75rem; } }
.brand { margin: 0 0 1.5rem; font-weight: 600; letter-spacing: .02em; color: var(--soft); }
h1 { margin: 0 0 .75rem; font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 1.75rem 0 .5rem; font-size: 1rem; }
p { margin: 0 0 1rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.notice { padding: .75rem 1rem; border-left: .25rem solid var(--bad); background: var(--bad-ground); color: var(--bad); }
label { display: block; margin: 1rem 0 .25rem; font-weight: 600; }
input[type=email], input[type=password], input[type=text] { width: 100%; padding: .6rem .75rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--paper); color: var(--ink); font: inherit; }
fieldset { margin: 1rem 0 0; padding: 0; border: 0; }
legend { padding: 0; font-weight: 600; }
.choice { display: flex; gap: .65rem; align-items: flex-start; margin: 0; padding: .4rem 0; font-weight: 400; }
.choice input { flex: none; width: 1.15rem; height: 1.15rem; margin: .2rem 0 0; accent-color: var(--strong); }
code { font: .875em ui-monospace, "SFMono-Regular", Menlo, monospace; color: var(--soft); overflow-wrap: anywhere; }
.actions { display: flex; flex-wrap: wrap; gap: .75rem; margin-top: 1.5rem; }
button { flex: 1 1 9rem; min-height: 2.75rem; padding: .5rem 1rem; border: 1px solid var(--line); border-radius: .5rem; background: transparent; color: var(--ink); font: inherit; font-weight: 600; cursor: pointer; }
button.main { border-color: var(--strong); background: var(--strong); color: var(--on-strong); }
a { color: var(--strong); }
:focus-visible { outline: .2rem solid var(--strong); outline-offset: .15rem; }
dl { margin: 0; } dt { margin-top: .75rem; color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
`
