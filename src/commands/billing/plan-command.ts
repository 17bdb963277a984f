import { MOST_AMOUNT } from '../../../schemas/billing.ts'
import { setPrice } from './billing.ts'
import { change, verbs, type Noun } from '../common/noun.ts'
import { currencyOf, numberOf, parse, TEXT, UsageError } from '../common/words.ts'

/** `plan` command. */
export const noun: Noun = {
  help: `  plan price --plan NAME --interval month|year --currency CODE --amount N
                                          set the price of a plan, in minor units; 0 removes the price
`,

  run: verbs('plan', {
    price: async (args, env) => {
      const { plan, interval, currency: code, amount: text } = parse(args, {
        plan: TEXT, interval: TEXT, currency: TEXT, amount: TEXT
      })
      if (!plan) throw new UsageError('plan price needs --plan NAME')
      if (interval !== 'month' && interval !== 'year') throw new UsageError('--interval must be month or year')
      const currency = currencyOf(code)
      if (text === undefined) throw new UsageError('plan price needs --amount N')
      const amount = text === '0' ? null : numberOf('--amount', text, MOST_AMOUNT)
      return change(env, (database) => setPrice(database, { plan, interval, currency, amount }))
    }
  })
}
