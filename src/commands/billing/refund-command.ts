import { MOST_AMOUNT } from '../../../schemas/billing.ts'
import { describeRefunds, refundCharge } from './billing.ts'
import { write } from '../common/output.ts'
import { listing, verbs, withDatabase, type Noun } from '../common/noun.ts'
import { noteDown } from './settling.ts'
import { numberOf, parse, TEXT, UsageError } from '../common/words.ts'

/** `refund` command. */
export const noun: Noun = {
  help: `  refund add --charge ID [--amount N]     give back what was received of a charge, or a part of it
  refund paid --id ID                     note down that a refund went out
  refund failed --id ID                   note down that it did not: it is left of its charge again
  refund list                             refunds that wait to be paid, and those to look at
  refund checked --id ID                  note down that you looked at one: it is not listed any more
`,

  run: verbs('refund', {
    add: async (args, env) => {
      const { charge, amount: text } = parse(args, { charge: TEXT, amount: TEXT })
      if (!charge) throw new UsageError('refund add needs --charge ID')
      const amount = numberOf('--amount', text, MOST_AMOUNT) ?? undefined
      return withDatabase(env, async (database) => {
        await write(`Refund ${await refundCharge(database, charge.toUpperCase(), amount)}\n`)
      })
    },

    paid: async (args, env) => noteDown('refund', 'paid', args, env),
    failed: async (args, env) => noteDown('refund', 'failed', args, env),
    checked: async (args, env) => noteDown('refund', 'checked', args, env),

    list: listing(describeRefunds)
  })
}
