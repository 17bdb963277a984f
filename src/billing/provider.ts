import type { PaymentStatus } from '../../schemas/billing.ts'

/** A request to charge an amount. */
export interface ChargeOrder {
  /** The idempotency key: the provider executes a repeated order once and returns its outcome. */
  id: string
  amount: number
  currency: string
  /** The organization's payment method; null if it has none. */
  payment_method_id: string | null
}

/** A request to refund an amount of a successful charge. */
export interface RefundOrder {
  id: string
  amount: number
  currency: string
  charge: { id: string, reference: string | null }
}

/** The provider's result; `pending` if it is not known yet. */
export interface Outcome { status: PaymentStatus, reference: string | null }

/**
 * A payment provider. Orders are sent outside of transactions, after the charge or refund was committed, and repeated
 * with the same id until the provider returns a final status, even if the operator has recorded an outcome meanwhile.
 * `signal` aborts a call at its timeout.
 */
export interface Provider {
  name: string
  charge (order: ChargeOrder, signal: AbortSignal): Promise<Outcome>
  refund (order: RefundOrder, signal: AbortSignal): Promise<Outcome>
}

/** The provider that refunds a successful charge: the one that reported the success, else `manual` (the operator). */
export const holderOf = ({ provider, provider_status }: { provider: string, provider_status: PaymentStatus | null }) =>
  provider_status === 'succeeded' ? provider : manual.name

/** Whether a charge or refund was sent to a provider that has not reported a final status yet. */
export const isUnanswered = (
  { provider, asked_at, provider_status }:
  { provider: string, asked_at: Date | null, provider_status: PaymentStatus | null }
) =>
  provider !== manual.name && (provider_status === 'pending' || (asked_at !== null && provider_status === null))

/**
 * Payment by wire transfer. The operator records received payments and refunds (`invoice paid`, `refund paid`). Stores
 * no card or account data.
 */
export const manual: Provider = {
  name: 'manual',
  charge: async () => ({ status: 'pending', reference: null }),
  refund: async () => ({ status: 'pending', reference: null })
}
