// Builds the console: bundles console/main.tsx and its styles, writes the page with their addresses and hashes, and
// compresses the files. One bundle, because the content security policy allows exactly one script, by its hash.
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { build } from 'esbuild'

const OUT = 'dist/console'

rmSync(OUT, { recursive: true, force: true })
mkdirSync(OUT, { recursive: true })
const { metafile } = await build({
  entryPoints: ['console/main.tsx'],
  bundle: true,
  minify: true,
  metafile: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  tsconfig: 'console/tsconfig.json',
  entryNames: '[name]-[hash]',
  // Style sheets cannot name foreign files: the policy allows no others.
  loader: { '.svg': 'dataurl' },
  legalComments: 'none',
  outdir: OUT,
  logLevel: 'warning'
})
const names = Object.keys(metafile.outputs).map((path) => basename(path))

let page = readFileSync('console/index.html', 'utf8')
for (const [placeholder, extension] of [['src="main.js"', '.js'], ['href="main.css"', '.css']]) {
  const name = names.find((one) => one.endsWith(extension))
  if (!page.includes(placeholder) || name === undefined) {
    throw new Error(`console/index.html must have ${placeholder}, and console/main.tsx must make a ${extension} file`)
  }
  const hash = createHash('sha256').update(readFileSync(join(OUT, name))).digest('base64')
  const [attribute] = placeholder.split('=')
  page = page.replace(placeholder, `${attribute}="/console/${name}" integrity="sha256-${hash}"`)
}
writeFileSync(join(OUT, 'index.html'), page)

for (const name of names) {
  const bytes = readFileSync(join(OUT, name))
  writeFileSync(join(OUT, `${name}.br`), brotliCompressSync(bytes))
  writeFileSync(join(OUT, `${name}.gz`), gzipSync(bytes, { level: 9 }))
}
