import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { loadConfig } from '../../src/config.ts'
import { run } from './process.ts'

/** Entries of the repository's folder that do not belong to the source. */
export const ELSEWHERE = ['.git', '.tap', 'data', 'dist', 'node_modules']

/** All documentation pages of the repository. */
export const PAGES: readonly string[] = readdirSync('.', { withFileTypes: true })
  .filter(({ name }) => !ELSEWHERE.includes(name))
  .flatMap((entry) => entry.isDirectory()
    ? readdirSync(entry.name, { recursive: true, encoding: 'utf8' }).map((name) => join(entry.name, name))
    : [entry.name])
  .filter((path) => path.endsWith('.md') && !path.includes('node_modules')).sort()

/** Parses a page of the documentation, for tests that compare the page with the code. */
export function readDoc (path: string) {
  const text = readFileSync(path, 'utf8')
  const links = [...text.matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)/g)].map(([, file = '', heading]) =>
    ({ file: file === '' ? path : resolve(dirname(path), file), heading }))
  const blocks = (language: string, heading?: string): string[] => {
    const start = heading === undefined ? 0 : text.indexOf(`\n## ${heading}\n`)
    if (start < 0) throw new Error(`${path}: no heading ${heading}`)
    const section = heading === undefined ? text : text.slice(start + 1).split('\n## ', 1)[0]!
    return [...section.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, 'gms'))].map(([, code]) => code!)
  }
  return {
    text,
    /** The links to files and headings of the project. */
    links,
    /** The anchors of the headings. */
    headings: anchorsIn(path),
    /** The first code block in a language. */
    block: (language: string): string | undefined => blocks(language)[0],
    /** All code blocks in a language, or only those under a heading. */
    blocks,
    /** The code blocks of the page in all languages, without their indentation. Includes the blocks in lists. */
    allBlocks: [...text.matchAll(/^( *)```\w*\n(.*?)^\1```$/gms)].map(([, indentation = '', code = '']) =>
      code.replaceAll(new RegExp(`^${indentation}`, 'gm'), '')),
    /** The cells of all tables whose header row starts with `head`, without backticks. */
    table (head: string): string[][] {
      const [, ...tables] = text.split(head)
      if (tables.length === 0) throw new Error(`${path}: no table ${head}`)
      return tables.flatMap((table) => table.split('\n\n', 1)[0]!.trimEnd().split('\n').slice(2).map((line) =>
        line.split('|').slice(1, -1).map((cell) => cell.trim().replaceAll('`', ''))))
    },
    /** Links to files or headings that do not exist. */
    brokenLinks: () => links.filter(({ file, heading }) =>
      !existsSync(file) || (heading !== undefined && !anchorsIn(file).includes(heading)))
  }
}

function anchorsIn (file: string): string[] {
  // Comments of shell scripts also begin with `#`.
  return [...readFileSync(file, 'utf8').replace(/^ *```.*?^ *```$/gms, '').matchAll(/^#+ (.*)$/gm)].map(([, text]) =>
    text!.toLowerCase().replace(/[^\w -]/g, '').replaceAll(' ', '-'))
}

/** The path of an example that the build has compiled. */
export const compiledExample = (name: string): string =>
  fileURLToPath(new URL(`../../examples/${name}.js`, import.meta.url))

/** The reason to skip tests of Python examples; false if they can run. */
export async function pythonLacks (module?: string): Promise<string | false> {
  const probe = await run('python3', ['-c', module === undefined ? '' : `import ${module}`]).catch(() => undefined)
  return probe?.code !== 0 && `python3${module === undefined ? '' : ` with the package ${module}`} is not installed`
}

/** The names of all variables that the service reads. */
export function variablesOfService (): Set<string> {
  const read = new Set<string>()
  loadConfig(new Proxy({}, {
    get (_env, name) {
      read.add(String(name))
      return undefined
    }
  }))
  return read
}
