import { MOST_AMOUNT } from '../../../schemas/billing.ts'
import { setPrice } from '../billing.ts'
import { write } from '../output.ts'
import { verbs, withDatabase, type Noun } from './noun.ts'
import { currencyOf, numberOf, parse, UsageError } from './words.ts'

/** `plan` and what it takes. */
export const noun: Noun = {
  help: `  plan price --plan NAME --interval month|year --currency CODE --amount N
                                          set what a plan costs, in minor units; 0 takes the price away
`,

  run: verbs('plan', {
    price: async (args, env) => {
      const { plan, interval, currency: code, amount: text } = parse(args, {
        plan: { type: 'string' }, interval: { type: 'string' }, currency: { type: 'string' }, amount: { type: 'string' }
      })
      if (!plan) throw new UsageError('plan price needs --plan NAME')
      if (interval !== 'month' && interval !== 'year') throw new UsageError('--interval is month or year')
      const currency = currencyOf(code)
      if (text === undefined) throw new UsageError('plan price needs --amount N')
      const amount = text === '0' ? null : numberOf('--amount', text, MOST_AMOUNT)
      return withDatabase(env, async (database) => {
        await setPrice(database, { plan, interval, currency, amount })
        await write('Changed.\n')
      })
    }
  })
}
