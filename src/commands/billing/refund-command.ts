import { MOST_AMOUNT } from '../../../schemas/billing.ts'
import { describeRefunds, refundCharge } from './billing.ts'
import { write } from '../common/output.ts'
import { listing, verbs, withDatabase, type Noun } from '../common/noun.ts'
import { noteDown } from './settling.ts'
import { numberOf, parse, TEXT, UsageError } from '../common/words.ts'

/** `refund` command. */
export const noun: Noun = {
  help: `  refund add --charge ID [--amount N]     refund a charge, or a part of it
  refund paid --id ID                     record that a refund was paid
  refund failed --id ID                   record that a refund failed: the amount is refundable again
  refund list                             list refunds that are pending or need review
  refund checked --id ID                  mark a refund as reviewed: it is no longer listed
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
