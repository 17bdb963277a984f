import { describeRefunds } from '../billing.ts'
import { verbs, withDatabase, type Noun } from './noun.ts'
import { noteDown } from './settling.ts'
import { parse } from './words.ts'

/** `refund` and what it takes. */
export const noun: Noun = {
  help: `  refund paid --id ID                     note down that a refund went out
  refund failed --id ID                   note down that it did not: it is left of its charge again
  refund list                             refunds that wait to be paid
`,

  run: verbs('refund', {
    paid: async (args, env) => noteDown('refund', 'paid', args, env),
    failed: async (args, env) => noteDown('refund', 'failed', args, env),

    list: async (args, env) => {
      parse(args, {})
      return withDatabase(env, async (database) => {
        for await (const line of describeRefunds(database)) process.stdout.write(`${line}\n`)
      })
    }
  })
}
