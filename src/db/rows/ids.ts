// 41 bits of milliseconds last until 2095. With 12 more bits, which separate instances, an id is a safe integer in
// JavaScript. Ids are not secret.
const BEGIN = Date.UTC(2026, 0, 1)
const APART = 2 ** 12

let last = 0

/**
 * The id of a row that MACs of other rows reference, or that a tenant sees: an account, a grant, a token, a key. The
 * service generates ids, each only once. An attacker with write access to the database could reset a database sequence,
 * and rows of a deleted account would then belong to a new one. A sequence would also reveal to tenants how many rows
 * others create. Ids of one process increase.
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
