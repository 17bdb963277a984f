// 41 bits of milliseconds last until 2095; 12 more bits separate instances. So an id is a safe integer.
const BEGIN = Date.UTC(2026, 0, 1)
const APART = 2 ** 12

let last = 0

/**
 * The id of a row that MACs of other rows reference, or that a tenant sees. Ids of one process increase. A database
 * sequence could be reset by an attacker with write access to the database, so that rows of a deleted account belong to
 * a new one, and would reveal to tenants how many rows others create.
 *
 * @param after an id that the new one must exceed, whichever instance made it
 */
export function makeId (after = 0): number {
  const apart = Math.floor(Math.random() * APART)
  const id = (Date.now() - BEGIN) * APART + apart
  last = Math.max(id, last + 1)
  if (last > after) return last
  // Does not move the process's own clock forward: one row must not affect the ids of other rows.
  const next = (Math.floor(after / APART) + 1) * APART + apart
  if (!Number.isSafeInteger(next)) throw new Error(`no id comes after ${after}`)
  return next
}
