// Builds the command line client: one file that needs only Node.js, and what the page /cli/ says of it.
import { createHash } from 'node:crypto'
import { chmodSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { build } from 'esbuild'

const OUT = 'dist/cli'
const FILE = `${OUT}/strongroom.mjs`

const { version } = JSON.parse(readFileSync('package.json', 'utf8'))
rmSync(OUT, { recursive: true, force: true })
mkdirSync(OUT, { recursive: true })
await build({
  entryPoints: ['cli/main.ts'],
  bundle: true,
  minify: true,
  platform: 'node',
  format: 'esm',
  target: 'node20.19',
  tsconfig: 'cli/tsconfig.json',
  // Packages of CommonJS call `require` for modules of Node.js.
  banner: { js: "#!/usr/bin/env node\nimport { createRequire as requireOfClient } from 'node:module'\nconst require = requireOfClient(import.meta.url)" },
  legalComments: 'none',
  define: { CLIENT_VERSION: JSON.stringify(version) },
  outfile: FILE,
  logLevel: 'warning'
})
chmodSync(FILE, 0o755)
const bytes = readFileSync(FILE)
writeFileSync(`${OUT}/about.json`, JSON.stringify({
  sha256: createHash('sha256').update(bytes).digest('hex'),
  bytes: bytes.length,
  version
}))
