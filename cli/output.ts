import { writeSync } from 'node:fs'
import { escapeUnprintable, unprintable } from '../schemas/unprintable.ts'
import { Failure } from './failure.ts'

// What people and programs read. Text of the service, of files and of names goes to a terminal only through `plain`.

/** A text without characters that a terminal obeys. */
export const plain = (text: string): string => text.replace(unprintable(), '?')

/** Whether standard error shows colours (https://no-color.org). */
const hasColour = (): boolean => process.stderr.isTTY === true && !process.env.NO_COLOR && process.env.TERM !== 'dumb'

/** Writes one line to standard error. */
export function tell (line: string): void {
  writeAll(2, `strongroom: ${plain(line)}\n`)
}

/** Writes one line about an error to standard error. */
export function tellError (line: string): void {
  writeAll(2, hasColour() ? `\u001b[31mstrongroom:\u001b[0m ${plain(line)}\n` : `strongroom: ${plain(line)}\n`)
}

/** Writes a text to standard output. */
export const print = (text: string): void => writeAll(1, text)

/** Writes a text of this command, such as its help, to standard error. */
export const printError = (text: string): void => writeAll(2, text)

/** Writes JSON in one line to standard output. Escapes what a terminal obeys, without another meaning. */
export const printJson = (value: unknown): void => print(`${escapeUnprintable(JSON.stringify(value))}\n`)

/** Throws if UTF-8 cannot express the value: half of a surrogate pair, which JSON can express, would become U+FFFD. */
export function requireBytes (name: string, value: string): void {
  if (/\p{Surrogate}/u.test(value)) {
    throw new Failure(`The value of ${name} has half of a surrogate pair, which UTF-8 cannot express: \`strongroom get --json\` prints it.`)
  }
}

/** Writes rows in columns to standard output. */
export function printTable (rows: readonly (readonly string[])[]): void {
  const texts = rows.map((row) => row.map(plain))
  const widthOf = (column: number) => Math.max(...texts.map((row) => row[column]?.length ?? 0))
  const widths = (texts[0] ?? []).map((_, column) => widthOf(column))
  print(texts.map((row) => `${row.map((cell, at) => cell.padEnd(widths[at]!)).join('  ').trimEnd()}\n`).join(''))
}

/** Writes all bytes before it returns, also to a pipe whose reader is slow. */
function writeAll (descriptor: 1 | 2, text: string): void {
  const bytes = Buffer.from(text)
  for (let at = 0; at < bytes.length;) {
    try {
      at += writeSync(descriptor, bytes, at)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'EAGAIN') { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5); continue }
      if (code === 'EPIPE' || descriptor === 2) return
      throw new Failure(`Standard output cannot be written: ${code}.`)
    }
  }
}
