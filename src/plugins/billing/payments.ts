import type { FastifyReply, FastifyRequest } from 'fastify'
import { ulid } from 'ulidx'
import {
  Charge, ChargeParams, Coupon, COUPON_PATTERN, CreateChargeBody, CreatePaymentMethodBody, CreateRefundBody, EmptyBody,
  PaymentMethod, PaymentMethodParams, RedeemCouponBody, Refund
} from '../../../schemas/billing.ts'
import { ListQuery, NoContent } from '../../../schemas/shapes.ts'
import { issueInvoice } from '../../billing/invoicing.ts'
import { giveBack } from '../../billing/settlement.ts'
import { change } from '../../changes/change.ts'
import { readNow, type Db } from '../../db/database.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import type { Domain } from '../../http/routes/types.ts'
import { eventOf, type AuditEvent } from '../../repositories/audit/audit.ts'
import {
  countPaymentMethods, createPaymentMethod, deletePaymentMethod, findCoupon, findPaymentMethod, hasRedeemed,
  listPaymentMethods, redeemCoupon, requireAccount, updateCoupon, updateDefaultMethod, updateDetails, type Account,
  type Coupon as CouponRow, type PaymentMethodRow
} from '../../repositories/billing/billing.ts'
import type { Charge as ChargeRow, Refund as RefundRow } from '../../repositories/billing/invoices.ts'
import { findSubscription } from '../../repositories/billing/subscriptions.ts'
import { refuseCardNumbers } from '../../rules/billing.ts'
import { fail, refuse } from '../../rules/api-error.ts'
import { answerPage } from '../../rules/pagination.ts'

const MAX_METHODS = 100
const CODE = new RegExp(COUPON_PATTERN)
const METHODS = '/organizations/:organization/billing/payment-methods'
const WRITE = { access: 'billing:write', at: 'organization', limitOfEffect: 'billing' } as const
const rules = [{ check: refuseCardNumbers }]

interface Changed<Body> { status: number, body: Body, event: AuditEvent }

export const payments: Domain = async (app) => {
  // Runs `work` in a change of the organization, with its billing account.
  const changeBilling = async <Body extends object | null>(
    request: FastifyRequest, reply: FastifyReply,
    work: (db: Db, organizationId: string, account: Account) => Promise<Changed<Body>>
  ) => {
    const { id } = principalOf(request).organization
    return change(app.db, actorOf(request), {
      count: () => app.countEffect(request, reply),
      load: async (db) => requireAccount(db, id),
      decide: (account) => ({
        write: async (db) => work(db, id, account),
        events: ({ event }) => [event],
        answer: ({ status, body }) => ({ status, body })
      })
    })
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
      const { body } = await changeBilling(request, reply, async (db, organizationId) => {
        await updateDetails(db, organizationId, billing_details)
        const others = await countPaymentMethods(db, organizationId)
        if (others >= MAX_METHODS) refuse('label', `Limit of ${MAX_METHODS} payment methods reached; delete one first`)
        const made = await createPaymentMethod(db, organizationId, {
          id: ulid(), kind, label, reference, is_default: is_default || others === 0
        })
        return { status: 201, body: { data: toMethod(made) }, event: eventOf('payment-method.create', made.id) }
      })
      return reply.code(201).send(body)
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
      const { body } = await changeBilling(request, reply, async (db, organizationId) => {
        const changed = await updateDefaultMethod(db, organizationId, id) ?? fail('not_found')
        return { status: 200, body: { data: toMethod(changed) }, event: eventOf('payment-method.update', id) }
      })
      return reply.code(200).send(body)
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
      const { body } = await changeBilling(request, reply, async (db, organizationId) => {
        const method = await findPaymentMethod(db, organizationId, id) ?? fail('not_found')
        if (method.is_default && await findSubscription(db, organizationId) !== undefined) fail('payment_method_in_use')
        await deletePaymentMethod(db, organizationId, id)
        return { status: 204, body: null, event: eventOf('payment-method.delete', id) }
      })
      return reply.code(204).send(body)
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
      const { body } = await changeBilling(request, reply, async (db, organizationId, account) => {
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
          event: eventOf('charge.create', id, { amount, currency, invoice_id })
        }
      })
      app.billing.wake()
      return reply.code(201).send(body)
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
      const { body } = await changeBilling(request, reply, async (db, organizationId) => {
        const { refund, charge, event } = await giveBack(db, organizationId, request.params.charge, request.body)
        return { status: 201, body: { data: toRefund(refund, charge) }, event }
      })
      app.billing.wake()
      return reply.code(201).send(body)
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
      const { body } = await changeBilling(request, reply, async (db, organizationId, account) => {
        if (account.coupon !== null) fail('coupon_taken')
        if (await hasRedeemed(db, organizationId, code)) fail('coupon_redeemed')
        const coupon = CODE.test(code) && await redeemCoupon(db, organizationId, code)
        if (!coupon) return refuseCoupon(CODE.test(code) ? await findCoupon(db, code) : undefined, await readNow(db))
        return { status: 201, body: { data: toCoupon(coupon) }, event: eventOf('coupon.redeem', code) }
      })
      return reply.code(201).send(body)
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
      const { body } = await changeBilling(request, reply, async (db, organizationId, { coupon }) => {
        if (coupon === null) fail('not_found', { resource: 'coupon' })
        await updateCoupon(db, organizationId, null)
        return { status: 204, body: null, event: eventOf('coupon.remove', coupon) }
      })
      return reply.code(204).send(body)
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
