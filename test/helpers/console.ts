import { buildSync } from 'esbuild'

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
