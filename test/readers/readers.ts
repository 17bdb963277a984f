import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parse } from 'dotenv'

/** The names and values that a reader finds in a document; null if it refuses the document. */
export type Reading = Record<string, string> | null

/** Reads many documents with one program, because a process for each document would take minutes. */
export interface Readers {
  names: readonly string[]
  /** Why the program cannot run here. */
  missing?: string
  read: (documents: readonly string[]) => Record<string, Reading[]>
}

const INSTALLED = resolve('dist/readers')
const SOURCE = resolve('test/readers')

function run (command: string, args: readonly string[], input: string, env: NodeJS.ProcessEnv, cwd?: string): Buffer {
  const { error, status, stdout, stderr } = spawnSync(command, args, { input, env, cwd, maxBuffer: 1 << 28 })
  if (error !== undefined || status !== 0) throw new Error(`${command}: ${error?.message ?? stderr.toString()}`)
  return stdout
}

const missing = (file: string) =>
  existsSync(join(INSTALLED, file)) ? {} : { missing: 'not installed: `npm run readers` installs it' }

const readJson = (command: string, args: readonly string[], env: NodeJS.ProcessEnv) =>
  (documents: readonly string[]) =>
    JSON.parse(run(command, args, JSON.stringify(documents), env).toString()) as Record<string, Reading[]>

/**
 * Sources each document in a separate shell, without other variables and programs. Prints each value that is set after
 * `v`, and `e` after each document.
 */
function source (documents: readonly string[], names: readonly string[]): Reading[] {
  const folder = mkdtempSync(join(tmpdir(), 'env-readers-'))
  try {
    for (const [index, document] of documents.entries()) writeFileSync(join(folder, String(index)), document)
    const values = names.map((name) => `"\${${name}+v}\${${name}-}"`).join(' ')
    const script = `i=0
      while [ $i -lt ${documents.length} ]; do
        (. "./$i" > /dev/null 2>&1 < /dev/null; printf '%s\\0' ${values}) 2> /dev/null
        printf 'e\\0'
        i=$((i + 1))
      done`
    const fields = run('/bin/sh', ['-c', script], '', { PATH: folder }, folder).toString().split('\0').slice(0, -1)
    const readings: Reading[] = []
    for (let at = 0; at < fields.length;) {
      const end = fields.indexOf('e', at)
      const found = names.flatMap((name, index) => {
        const field = at + index < end ? fields[at + index]! : ''
        return field.startsWith('v') ? [[name, field.slice(1)]] : []
      })
      readings.push(end === at ? null : Object.fromEntries(found) as Record<string, string>)
      at = end + 1
    }
    return readings
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** The readers; `names` are the names whose values a shell prints. */
export const readers = (names: readonly string[]): Readers[] => [
  { names: ['dotenv'], read: (documents) => ({ dotenv: documents.map((document) => ({ ...parse(document) })) }) },
  { names: ['sh'], read: (documents) => ({ sh: source(documents, names) }) },
  {
    names: ['python-dotenv'],
    ...missing('python/dotenv'),
    read: readJson('python3', [join(SOURCE, 'readers.py')], {
      PATH: process.env.PATH, PYTHONPATH: join(INSTALLED, 'python'), PYTHONDONTWRITEBYTECODE: '1'
    })
  },
  { names: ['godotenv', 'compose'], ...missing('go-readers'), read: readJson(join(INSTALLED, 'go-readers'), [], {}) }
]
