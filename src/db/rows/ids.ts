// 41 bits of milliseconds last until 2095, and with 12 more bits, which keep two instances apart, an id is a number
// that JavaScript holds exactly. It is no secret.
const BEGIN = Date.UTC(2026, 0, 1)
const APART = 2 ** 12

let last = 0

/**
 * The id of a row that MACs of other rows name, or that a tenant sees: an account, a grant, a token, a key. The service
 * makes the id itself and never twice. A sequence of the database could be set back by an attacker who writes to the
 * database, and rows of a deleted account would then belong to the next one; and its numbers would tell a tenant how
 * many rows the other tenants make. Later ids of one process are larger.
 *
 * @param after an id that this one has to be larger than, whose clock ever that was made by
 */
export function makeId (after = 0): number {
  const apart = Math.floor(Math.random() * APART)
  const id = (Date.now() - BEGIN) * APART + apart
  last = Math.max(id, last + 1)
  if (last > after) return last
  // Of this row alone: what one row says does not put the ids of all others ahead of time.
  const next = (Math.floor(after / APART) + 1) * APART + apart
  if (!Number.isSafeInteger(next)) throw new Error(`no id comes after ${after}`)
  return next
}
