import { COUPON_PATTERN, MOST_AMOUNT } from '../../../schemas/billing.ts'
import { addCoupon, describeCoupons, stopCoupon } from './billing.ts'
import { change, listing, verbs, type Noun } from '../common/noun.ts'
import { currencyOf, fail, numberOf, parse, TEXT, timeOf, UsageError } from '../common/words.ts'

/** `coupon` command. */
export const noun: Noun = {
  help: `  coupon add --code CODE [--percent N] [--amount N --currency CODE] [--valid-until TIME] [--redemptions N]
                                          create a coupon; amounts are in minor units
  coupon end --code CODE                  end a coupon, also for organizations that redeemed it
  coupon list                             list every coupon: code, discount, redemptions, end
`,

  run: verbs('coupon', {
    add: async (args, env) => {
      const given = parse(args, {
        code: TEXT, percent: TEXT, amount: TEXT, currency: TEXT, 'valid-until': TEXT, redemptions: TEXT
      })
      const percent_off = numberOf('--percent', given.percent, 100)
      const amount_off = numberOf('--amount', given.amount, MOST_AMOUNT)
      if ((percent_off === null) === (amount_off === null)) {
        throw new UsageError('coupon add needs --percent, or --amount with --currency')
      }
      const currency = amount_off === null ? null : currencyOf(given.currency)
      if (amount_off === null && given.currency !== undefined) throw new UsageError('--currency requires --amount')
      const valid_until = timeOf('--valid-until', given['valid-until']) ?? null
      const max_redemptions = numberOf('--redemptions', given.redemptions, 1_000_000_000)
      const code = couponOf(given.code)
      return change(env, (database) =>
        addCoupon(database, { code, percent_off, amount_off, currency, valid_until, max_redemptions }), 'Added.')
    },

    end: async (args, env) => {
      const code = couponOf(parse(args, { code: TEXT }).code)
      return change(env, (database) => stopCoupon(database, code))
    },

    list: listing(describeCoupons)
  })
}

function couponOf (text: string | undefined): string {
  return text !== undefined && new RegExp(COUPON_PATTERN).test(text)
    ? text.toUpperCase()
    : fail('--code has 1 to 64 letters, digits, "-" and "_"')
}
