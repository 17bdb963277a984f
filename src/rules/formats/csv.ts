// Some spreadsheets also read the fullwidth forms of these characters.
const FORMULA = /^[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]/

/**
 * A record of CSV (RFC 4180). A spreadsheet takes a cell that begins with `=`, `+`, `-`, `@`, a tab or a line break for
 * a formula, so such a cell gets a leading apostrophe.
 */
export const csvRecord = (cells: readonly (string | number | null)[]): string => `${cells.map(cellOf).join()}\r\n`

function cellOf (value: string | number | null): string {
  const text = String(value ?? '')
  const shown = FORMULA.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(shown) ? `"${shown.replaceAll('"', '""')}"` : shown
}
