import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const COLUMNS = {
  fault: 'Fault',
  cycles: 'Cycles',
  acknowledged: 'Acknowledged',
  lost: 'Lost',
  outside: 'Outside the contract',
  exits: 'Exits',
  recovery: 'Recovery, ms',
  note: ''
}

/** Prints the table of the faults whose outcomes the tests wrote to this directory (`test/helpers/faults.ts`). */
export function printFaults (directory) {
  const rows = readdirSync(directory).map((name) => JSON.parse(readFileSync(join(directory, name), 'utf8')))
    .sort((a, b) => a.fault < b.fault ? -1 : 1)
  const table = [COLUMNS, ...rows].map((row) => Object.keys(COLUMNS).map((name) => String(row[name] ?? '')))
  const widths = Object.keys(COLUMNS).map((_, i) => Math.max(...table.map((row) => row[i].length)))
  const isWord = (i) => i === 0 || i === widths.length - 1
  console.log(table.map((row) =>
    row.map((text, i) => isWord(i) ? text.padEnd(widths[i]) : text.padStart(widths[i])).join('  ').trimEnd()).join('\n'))
}
