// 41 bits of milliseconds last until 2095, and with 12 more bits, which keep two instances apart, an id is a number
// that JavaScript holds exactly. It is no secret.
const BEGIN = Date.UTC(2026, 0, 1)
const APART = 2 ** 12

let last = 0

/**
 * The id of a row that MACs of other rows name: an account, a grant, a token. It is the service's own, and never given
 * twice: a sequence of the database can be set back by whoever may write to it, and what once hung on one account would
 * hang on the next. Later ones are larger.
 */
export function makeId (): number {
  const id = (Date.now() - BEGIN) * APART + Math.floor(Math.random() * APART)
  last = Math.max(id, last + 1)
  return last
}
