import { is } from 'drizzle-orm'
import { PgTransaction } from 'drizzle-orm/pg-core'
import type { Db } from './handle.ts'
import { codeOf } from './errors.ts'

/** Questions that one statement takes at most. */
const MOST = 100

interface Asked<Q, A> {
  question: Q
  answer: Promise<A>
  resolve: (answer: A | Promise<A>) => void
  reject: (error: unknown) => void
}

/** How a look-up of many at once is done. */
export interface LookUp<Q, R, A> {
  /** What tells questions apart: those with one key share an answer. */
  keyOf: (question: Q) => string
  /** The rows for each of the questions, in their order. */
  find: (db: Db, questions: Q[]) => Promise<R[][]>
  /** What the rows of one question say. What it throws is the answer to that question alone. */
  read: (db: Db, rows: R[], question: Q) => A
}

/**
 * A look-up that is done in one statement for all who ask in the same turn of the event loop. The statement is sent
 * after the last of them asked, so that no answer is older than its question, and nothing is kept: what was revoked is
 * gone at once. In a transaction it is done at once, alone.
 */
export function gather<Q, R, A> ({ keyOf, find, read }: LookUp<Q, R, A>): (db: Db, question: Q) => Promise<A> {
  const waiting = new WeakMap<Db, Map<string, Asked<Q, A>>>()

  const alone = async (db: Db, question: Q): Promise<A> => read(db, (await find(db, [question]))[0]!, question)

  async function send (db: Db, asked: Asked<Q, A>[]) {
    try {
      const rows = await find(db, asked.map(({ question }) => question))
      for (const [i, { question, resolve, reject }] of asked.entries()) {
        try {
          resolve(read(db, rows[i]!, question))
        } catch (error) {
          reject(error)
        }
      }
    } catch (error) {
      // What one of them asked is no value of its type (SQLSTATE class 22): the others are not to blame.
      const isOfOne = asked.length > 1 && codeOf(error)?.startsWith('22')
      for (const { question, resolve, reject } of asked) {
        if (isOfOne) resolve(alone(db, question))
        else reject(error)
      }
    }
  }

  return (db, question) => {
    if (is(db, PgTransaction)) return alone(db, question)
    const key = keyOf(question)
    const others = waiting.get(db)
    const same = others?.get(key)
    if (same !== undefined) return same.answer
    let settle!: Pick<Asked<Q, A>, 'resolve' | 'reject'>
    const answer = new Promise<A>((resolve, reject) => { settle = { resolve, reject } })
    const asked = { question, answer, ...settle }
    if (others !== undefined && others.size < MOST) {
      others.set(key, asked)
      return answer
    }
    const batch = new Map([[key, asked]])
    waiting.set(db, batch)
    setImmediate(() => {
      if (waiting.get(db) === batch) waiting.delete(db)
      // It rejects never: each of the questions gets its own answer.
      send(db, [...batch.values()]).catch(() => {})
    })
    return answer
  }
}

/** Rows by the number of their question, from 0. */
export function byQuestion<R extends { question: number }> (
  rows: readonly R[], questions: number
): Omit<R, 'question'>[][] {
  const all = Array.from({ length: questions }, (): Omit<R, 'question'>[] => [])
  for (const { question, ...row } of rows) all[question]!.push(row)
  return all
}
