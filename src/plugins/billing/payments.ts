import type { FastifyReply, FastifyRequest } from 'fastify'
import { ulid } from 'ulidx'
import {
  Charge, ChargeParams, Coupon, COUPON_PATTERN, CreateChargeBody, CreatePaymentMethodBody, CreateRefundBody, EmptyBody,
  PaymentMethod, PaymentMethodParams, RedeemCouponBody, Refund
} from '../../../schemas/billing.ts'
import { ListQuery, NoContent } from '../../../schemas/shapes.ts'
import { lockAccount, issueInvoice } from '../../billing/invoicing.ts'
import { giveBack } from '../../billing/settlement.ts'
import { readNow, type Db } from '../../db/database.ts'
import { principalOf } from '../../http/routes/actor.ts'
import { afterCommit, changeOnce, type Change } from '../../http/repeats/idempotency.ts'
import type { Domain } from '../../http/routes/types.ts'
import { eventOf } from '../../repositories/audit/audit.ts'
import {
  countPaymentMethods, createPaymentMethod, deletePaymentMethod, findCoupon, findPaymentMethod, hasRedeemed,
  listPaymentMethods, redeemCoupon, updateCoupon, updateDefaultMethod, updateDetails, type Account,
  type Coupon as CouponRow, type PaymentMethodRow
} from '../../repositories/billing/billing.ts'
import type { Charge as ChargeRow, Refund as RefundRow } from '../../repositories/billing/invoices.ts'
import { findSubscription } from '../../repositories/billing/subscriptions.ts'
import { refuseCardNumbers } from '../../rules/billing.ts'
import { fail, refuse } from '../../rules/errors.ts'
import { answerPage } from '../../rules/pagination.ts'

const MAX_METHODS = 100
const CODE = new RegExp(COUPON_PATTERN)
const METHODS = '/organizations/:organization/billing/payment-methods'
const WRITE = { access: 'billing:write', at: 'organization', limitOfEffect: 'billing' } as const
const rules = [{ check: refuseCardNumbers }]

export const payments: Domain = async (app) => {
  // Runs `work` in a transaction that locks the organization.
  function change (
    request: FastifyRequest, reply: FastifyReply,
    work: (db: Db, organizationId: string, account: Account) => Promise<Change>
  ) {
    const { id } = principalOf(request).organization
    return changeOnce(app, request, reply, async (db) => work(db, id, (await lockAccount(db, id)).account))
  }

  app.get(METHODS, {
    config: { access: 'billing:read', at: 'organization', whenInactive: true },
    schema: {
      operationId: 'listPaymentMethods',
      summary: 'List payment methods, the default method first',
      description: 'A payment method is a label and a reference of the payment provider.',
      querystring: ListQuery,
      response: { 200: PaymentMethod.list }
    },
    handler: async (request) => answerPage(request.query, toMethod, (page) =>
      listPaymentMethods(app.pages, principalOf(request).organization.id, page))
  })

  app.post(METHODS, {
    config: {
      ...WRITE,
      also: '/organizations/:organization/payment-methods',
      rules,
      audit: 'payment-method.create',
      errors: ['card_number_refused']
    },
    schema: {
      operationId: 'createPaymentMethod',
      summary: 'Add a payment method; card numbers are rejected',
      description: 'The first payment method of an organization becomes the default.',
      body: CreatePaymentMethodBody,
      response: { 201: PaymentMethod.one }
    },
    handler: async (request, reply) => {
      const { kind, label, reference = null, is_default = false, billing_details = {} } = request.body
      return change(request, reply, async (db, organizationId) => {
        await updateDetails(db, organizationId, billing_details)
        const others = await countPaymentMethods(db, organizationId)
        if (others >= MAX_METHODS) refuse('label', `Limit of ${MAX_METHODS} payment methods reached; delete one first`)
        const made = await createPaymentMethod(db, organizationId, {
          id: ulid(), kind, label, reference, is_default: is_default || others === 0
        })
        return { status: 201, body: { data: toMethod(made) }, events: [eventOf('payment-method.create', made.id)] }
      })
    }
  })

  app.patch(`${METHODS}/:payment_method/default`, {
    config: { ...WRITE, audit: 'payment-method.update' },
    schema: {
      operationId: 'updateDefaultPaymentMethod',
      summary: 'Make a payment method the default',
      description: 'Later invoices are charged to this payment method.',
      params: PaymentMethodParams,
      body: EmptyBody,
      response: { 200: PaymentMethod.one }
    },
    handler: async (request, reply) => {
      const id = request.params.payment_method
      return change(request, reply, async (db, organizationId) => {
        const changed = await updateDefaultMethod(db, organizationId, id) ?? fail('not_found')
        return { status: 200, body: { data: toMethod(changed) }, events: [eventOf('payment-method.update', id)] }
      })
    }
  })

  app.delete(`${METHODS}/:payment_method`, {
    config: { ...WRITE, audit: 'payment-method.delete', errors: ['payment_method_in_use'] },
    schema: {
      operationId: 'deletePaymentMethod',
      summary: 'Delete a payment method, unless it is the default one of a subscription',
      description: 'Earlier invoices and charges stay.',
      params: PaymentMethodParams,
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      const id = request.params.payment_method
      return change(request, reply, async (db, organizationId) => {
        const method = await findPaymentMethod(db, organizationId, id) ?? fail('not_found')
        if (method.is_default && await findSubscription(db, organizationId) !== undefined) fail('payment_method_in_use')
        await deletePaymentMethod(db, organizationId, id)
        return { status: 204, body: null, events: [eventOf('payment-method.delete', id)] }
      })
    }
  })

  app.post('/organizations/:organization/billing/charges', {
    config: { ...WRITE, rules, audit: 'charge.create', errors: ['card_number_refused', 'invoicing_unavailable'] },
    schema: {
      operationId: 'createCharge',
      summary: 'Charge an amount with a separate invoice',
      description: 'For an amount that does not belong to the subscription.',
      body: CreateChargeBody,
      response: { 201: Charge.one }
    },
    handler: async (request, reply) => {
      const { amount, currency, description, payment_method_id: paymentMethodId } = request.body
      const answer = await change(request, reply, async (db, organizationId, account) => {
        const method = paymentMethodId === undefined
          ? undefined
          : await findPaymentMethod(db, organizationId, paymentMethodId) ??
            refuse('payment_method_id', 'No such payment method in this organization')
        const { charge } = await issueInvoice(db, app.invoicing, account, {
          currency,
          lines: [{ description, amount, period_start: null, period_end: null }],
          discount: 0,
          usesCredit: false,
          method
        }, new Date(await readNow(db)))
        const { id, invoice_id } = charge!
        return {
          status: 201,
          body: { data: toCharge(charge!) },
          events: [eventOf('charge.create', id, { amount, currency, invoice_id })]
        }
      })
      afterCommit(request, () => app.billing.wake())
      return answer
    }
  })

  app.post('/organizations/:organization/billing/charges/:charge/refund', {
    config: {
      ...WRITE,
      rules,
      audit: 'refund.create',
      errors: ['charge_not_settled', 'refund_exceeds_charge', 'card_number_refused']
    },
    schema: {
      operationId: 'refundCharge',
      summary: 'Refund a settled charge or a part of it; without `amount`, the remaining amount',
      description: 'Several refunds of one charge are possible, up to its amount.',
      params: ChargeParams,
      body: CreateRefundBody,
      response: { 201: Refund.one }
    },
    handler: async (request, reply) => {
      const answer = await change(request, reply, async (db, organizationId) => {
        const { refund, charge, event } = await giveBack(db, organizationId, request.params.charge, request.body)
        return { status: 201, body: { data: toRefund(refund, charge) }, events: [event] }
      })
      afterCommit(request, () => app.billing.wake())
      return answer
    }
  })

  app.post('/organizations/:organization/billing/coupons', {
    config: {
      ...WRITE,
      audit: 'coupon.redeem',
      errors: ['coupon_unknown', 'coupon_expired', 'coupon_used_up', 'coupon_taken', 'coupon_redeemed']
    },
    schema: {
      operationId: 'redeemCoupon',
      summary: 'Redeem a coupon once: it reduces future invoices of the subscription',
      description: 'An organization has at most one coupon at a time.',
      body: RedeemCouponBody,
      response: { 201: Coupon.one }
    },
    handler: async (request, reply) => {
      const code = request.body.code.toUpperCase()
      return change(request, reply, async (db, organizationId, account) => {
        if (account.coupon !== null) fail('coupon_taken')
        if (await hasRedeemed(db, organizationId, code)) fail('coupon_redeemed')
        const coupon = CODE.test(code) && await redeemCoupon(db, organizationId, code)
        if (!coupon) return refuseCoupon(CODE.test(code) ? await findCoupon(db, code) : undefined, await readNow(db))
        return { status: 201, body: { data: toCoupon(coupon) }, events: [eventOf('coupon.redeem', code)] }
      })
    }
  })

  app.delete('/organizations/:organization/billing/coupons', {
    config: { ...WRITE, audit: 'coupon.remove' },
    schema: {
      operationId: 'removeCoupon',
      summary: 'Remove the coupon; it still counts as redeemed',
      description: 'Invoices that exist already stay as they are.',
      response: { 204: NoContent }
    },
    handler: async (request, reply) => {
      return change(request, reply, async (db, organizationId, { coupon }) => {
        if (coupon === null) fail('not_found', { resource: 'coupon' })
        await updateCoupon(db, organizationId, null)
        return { status: 204, body: null, events: [eventOf('coupon.remove', coupon)] }
      })
    }
  })
}

function refuseCoupon (coupon: CouponRow | undefined, now: number): never {
  if (coupon === undefined) fail('coupon_unknown')
  if (coupon.valid_until !== null && coupon.valid_until.getTime() <= now) fail('coupon_expired')
  return fail('coupon_used_up')
}

const toMethod = ({ id, kind, label, reference, is_default, created_at }: PaymentMethodRow) =>
  ({ type: 'payment-methods' as const, id, attributes: { kind, label, reference, is_default, created_at } })

function toCharge ({
  id, amount, currency, status, refunded, invoice_id, payment_method_id, created_at
}: ChargeRow) {
  const attributes = { amount, currency, status, refunded, invoice_id, payment_method_id, created_at }
  return { type: 'charges' as const, id, attributes }
}

function toRefund ({ id, charge_id, amount, status, reason, created_at }: RefundRow, { currency }: ChargeRow) {
  return { type: 'refunds' as const, id, attributes: { charge_id, amount, currency, status, reason, created_at } }
}

function toCoupon ({ code, percent_off, amount_off, currency, valid_until }: CouponRow) {
  return { type: 'coupons' as const, id: code, attributes: { percent_off, amount_off, currency, valid_until } }
}
