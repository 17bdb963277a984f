// Lays packages of very many files beside the code as few: Node.js takes a third of a millisecond and more for each
// file of an ES module, and what a start needs of these two is 360 of them. In `dist/node_modules` the code finds them
// first; the sources name the packages, and know nothing of it.
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const PACKAGES = ['@sinclair/typebox', 'drizzle-orm']

rmSync('dist/node_modules', { recursive: true, force: true })
const imports = importsOfCode()
for (const name of PACKAGES) {
  const folder = join('dist/node_modules', name)
  const paths = imports.filter((path) => path === name || path.startsWith(`${name}/`))
  const fileOf = (path) => path.slice(name.length + 1) || 'index'
  await build({
    // From here they are those that were installed.
    entryPoints: Object.fromEntries(paths.map((path) => [fileOf(path), fileURLToPath(import.meta.resolve(path))])),
    bundle: true,
    // What several of its paths share there is once, and every other package once too: where it was installed and
    // patched.
    splitting: true,
    packages: 'external',
    platform: 'node',
    format: 'esm',
    outdir: folder,
    logLevel: 'warning'
  })
  const exports = Object.fromEntries(paths.map((path) => [`.${path.slice(name.length)}`, `./${fileOf(path)}.js`]))
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name, type: 'module', exports }))
}

// Of what has a source: nothing takes out of `dist` what a deleted one left there.
function importsOfCode () {
  const files = readdirSync('dist', { recursive: true })
    .filter((file) => file.endsWith('.js') && existsSync(file.replace(/\.js$/, '.ts')))
  return [...new Set(files.flatMap((file) =>
    [...readFileSync(join('dist', file), 'utf8').matchAll(/\b(?:from |import\()'([^'.][^']*)'/g)].map(([, path]) => path)))]
}
