import { readFileSync } from 'node:fs'
import { buffer } from 'node:stream/consumers'
import { namesAt, parametersOf, templateOf } from './api.ts'
import { Failure, isClientManaged, Misuse, reasonOf } from './failure.ts'
import { plain, print, printJson, printTable, requireBytes, tell } from './output.ts'
import { textOfPlace } from './settings.ts'
import { ask, load, locate, valuesOf, type At, type LevelName, type Reading, type Value } from './values.ts'

// The commands that people type: get, set, unset, list, open.

export interface HandOptions extends Reading { json?: boolean }

/** Writes the exact bytes of one value to standard output. On a terminal, a line end follows. */
export async function get (name: string, argument: string | undefined, options: HandOptions): Promise<number> {
  const at = await locate(options, argument)
  const found = (await valuesOf(await load(at), at, options.keyFile)).get(name)
  if (found === undefined) throw new Failure(`There is no value for ${name} at ${textOfPlace(at.place)}.`)
  if (options.json === true) {
    printJson({ name, value: found.value })
    return 0
  }
  requireBytes(name, found.value)
  print(process.stdout.isTTY && !found.value.endsWith('\n') ? `${found.value}\n` : found.value)
  return 0
}

/** Sets one value. Without a value it is read from a file, standard input or the terminal. */
export async function set (
  text: string, argument: string | undefined, options: HandOptions & { file?: string }
): Promise<number> {
  const at = text.indexOf('=')
  const name = at < 0 ? text : text.slice(0, at)
  if (name === '') throw new Misuse('No name is given.')
  if (at >= 0 && options.file !== undefined) throw new Misuse('Give the value as NAME=VALUE or with --file, not both.')
  if (at >= 0) tell('A shell keeps the commands that are typed, with the value in them. Use standard input or --file instead.')
  const where = await locate(options, argument)
  const value = at >= 0 ? text.slice(at + 1) : await readValue(name, options.file)
  if (value.includes('\0')) throw new Failure('The value has a NUL character, so it is refused.')
  // Node.js replaces the bytes of an argument that are not UTF-8.
  if (text.includes('\ufffd')) throw new Failure('The argument is not UTF-8, or has the character U+FFFD, so it is refused. Use standard input or --file.')
  return change(where, { set: { [name]: value } }, options)
}

async function readValue (name: string, file: string | undefined): Promise<string> {
  if (file === undefined && process.stdin.isTTY) return ask(`Value of ${plain(name)}: `)
  let bytes: Buffer
  try {
    bytes = file === undefined ? await buffer(process.stdin) : readFileSync(file)
  } catch (error) { throw new Failure(`The value cannot be read: ${reasonOf(error)}.`) }
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch { throw new Failure('The value is not UTF-8, so it is refused.') }
}

/** Removes one value of the place; a value of a level above then applies. */
export async function unset (name: string, argument: string | undefined, options: HandOptions): Promise<number> {
  return change(await locate(options, argument), { unset: [name] }, options)
}

type Change = { set: Record<string, string> } | { unset: string[] }

async function change ({ api, place, organization }: At, body: Change, { json }: HandOptions): Promise<number> {
  const path = parametersOf(await organization(), place)
  const { data } = await api.send((client) =>
    client.PATCH(templateOf(place, '/secrets'), { params: { path }, body })).catch((error: unknown) => {
    if (isClientManaged(error)) {
      throw new Failure('The key of this project is with its clients, and this command does not change such documents yet: use the console.')
    }
    throw error
  })
  const { message, warnings = [] } = data
  if (json === true) printJson({ message, unchanged: data.data.unchanged, warnings })
  else {
    tell(message)
    for (const { line, reason } of warnings) tell(`Other programs may read another value in line ${line}: ${reason}.`)
  }
  return 0
}

/** Lists the names of a place and the level of each; with `values` also the values. */
export async function list (
  argument: string | undefined, options: HandOptions & { values?: boolean }
): Promise<number> {
  const at = await locate(options, argument)
  const rows = options.values === true ? await withValues(at, options) : await withoutValues(at, options)
  if (options.json === true) {
    printJson(rows)
    return 0
  }
  printTable(rows.map(({ name, level, overrides, value }) => [
    name,
    overrides.length > 0 ? `${level} (overrides ${overrides.join(', ')})` : level,
    ...value === undefined ? [] : [value]
  ]))
  return 0
}

interface Row { name: string, level: LevelName, overrides: LevelName[], value?: string }

async function withoutValues (at: At, options: HandOptions): Promise<Row[]> {
  try {
    const { data, meta } = await namesAt(at.api, await at.organization(), at.place)
    sayLeftOut(meta.left_out ?? [])
    return data.map(({ attributes }) => attributes)
  } catch (error) {
    if (!isClientManaged(error)) throw error
  }
  return (await withValues(at, options)).map(({ value: _, ...row }) => row)
}

async function withValues (at: At, options: HandOptions): Promise<Row[]> {
  const loaded = await load(at)
  sayLeftOut(loaded.left_out)
  const values = await valuesOf(loaded, at, options.keyFile)
  const rowOf = (name: string, { value, level, overrides }: Value) => ({ name, level: level!, overrides, value })
  if (loaded.kind === 'documents') return [...values].map(([name, found]) => rowOf(name, found)).sort(byName)
  const rows = await withoutValues(at, options)
  return rows.flatMap((row) => values.has(row.name) ? [{ ...row, value: values.get(row.name)!.value }] : [])
}

const byName = (one: Row, other: Row): number => one.name < other.name ? -1 : 1

function sayLeftOut (levels: readonly string[]): void {
  if (levels.length > 0) tell(`The restrictions of the caller leave out: ${levels.join(', ')}.`)
}

/** Prints the address of a place in the console, and opens it in the browser. */
export async function open (
  argument: string | undefined, options: HandOptions & { browser?: boolean }
): Promise<number> {
  const { service: { url }, place: { project, target, environment }, organization } = await locate(options, argument)
  const parts = [await organization(), project, '-', 'level', target, environment].filter((slug) => slug !== undefined)
  const address = `${url}/console/${parts.map(encodeURIComponent).join('/')}`
  print(`${address}\n`)
  if (options.browser !== false) {
    const { openBrowser } = await import('./oauth.ts')
    openBrowser(address)
  }
  return 0
}
