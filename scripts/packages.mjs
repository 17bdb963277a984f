// Bundles packages that have very many files, for a faster start: Node.js needs a third of a millisecond or more to
// load a module file, and a start loads 360 files of these two packages. Node.js finds the bundles in
// `dist/node_modules` before the installed packages, so the imports in the sources stay the same.
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
    // Seen from this script, the paths resolve to the installed packages.
    entryPoints: Object.fromEntries(paths.map((path) => [fileOf(path), fileURLToPath(import.meta.resolve(path))])),
    bundle: true,
    // Entry points share common chunks. Other packages stay external, so the patched driver is loaded only once.
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

// Skips files without a source: the build does not delete the output of deleted sources from `dist`.
function importsOfCode () {
  const files = readdirSync('dist', { recursive: true })
    .filter((file) => file.endsWith('.js') && existsSync(file.replace(/\.js$/, '.ts')))
  return [...new Set(files.flatMap((file) =>
    [...readFileSync(join('dist', file), 'utf8').matchAll(/\b(?:from |import\()'([^'.][^']*)'/g)].map(([, path]) => path)))]
}
