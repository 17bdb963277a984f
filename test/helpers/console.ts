import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { buildSync } from 'esbuild'

const LEVELS = ['Project', 'Target', 'Environment']

/** The operations that the sources of the console name, with their methods and paths. */
export function operationsOfConsole (): Map<string, string> {
  const texts = Object.entries(JSON.parse(readFileSync('dist/openapi-operations.json', 'utf8')) as Record<string, string>)
  const sources = readdirSync('console', { recursive: true }).map(String).filter((name) => /\.tsx?$/.test(name))
    .map((name) => readFileSync(join('console', name), 'utf8')).join('\n')
  const named = new Set([...sources.matchAll(/'(\w+)'/g)].map(([, name]) => name!))
  for (const [, verb, what] of sources.matchAll(/callLevel\('(read|change|compare)(\w+)'/g)) {
    for (const level of LEVELS) named.add(`${verb}${level}${what}`)
  }
  return new Map(texts.filter(([operation]) => named.has(operation)))
}

/** A module of the console, bundled for Node.js. */
export async function load (file: string): Promise<any> {
  const { outputFiles: [output] } = buildSync({
    entryPoints: [`console/${file}`],
    bundle: true,
    write: false,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    define: { 'import.meta.url': '"http://localhost/console/main.js"' },
    tsconfig: 'console/tsconfig.json'
  })
  return import(`data:text/javascript;base64,${Buffer.from(output!.contents).toString('base64')}`)
}
