// An id is a safe integer: 41 bits for milliseconds (until 2095), and 12 random bits to separate instances.
const BEGIN = Date.UTC(2026, 0, 1)
const APART = 2 ** 12

let last = 0

/**
 * Creates the id of a row. Ids of one process increase. Not a database sequence: an attacker with write access to the
 * database could reset the sequence, so that a new account gets the id and the rows of a deleted account. A sequence
 * would also show tenants how many rows others create.
 *
 * @param after the new id is higher than this id, which another instance may have created
 */
export function makeId (after = 0): number {
  const apart = Math.floor(Math.random() * APART)
  const id = (Date.now() - BEGIN) * APART + apart
  last = Math.max(id, last + 1)
  if (last > after) return last
  // `last` stays the same, so that a high `after` does not affect the ids of other rows.
  const next = (Math.floor(after / APART) + 1) * APART + apart
  if (!Number.isSafeInteger(next)) throw new Error(`no id comes after ${after}`)
  return next
}
