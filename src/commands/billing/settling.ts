import { settle } from './billing.ts'
import { write } from '../common/output.ts'
import { withDatabase, type Environment } from '../common/noun.ts'
import { parse, TEXT, UsageError } from '../common/words.ts'

/** Records the outcome of an invoice or a refund. */
export async function noteDown<T extends 'invoice' | 'refund'> (
  of: T, as: Parameters<typeof settle<T>>[2], args: string[], env: Environment
): Promise<number> {
  const { id } = parse(args, { id: TEXT })
  if (!id) throw new UsageError(`${of} ${String(as)} needs --id ID`)
  return withDatabase(env, async (database) => {
    await write(`${await settle(database, of, as, id.toUpperCase())}\n`)
  })
}
