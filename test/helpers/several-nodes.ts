/**
 * Operations with an API token that change a table with a copy on each node of a Citus cluster. They use several nodes
 * and a two-phase commit. Each value says what the operation changes there. docs/scaling.md also lists them.
 */
export const SEVERAL_NODES: Record<string, string> = {
  redeemCoupon: 'the number of redemptions of the coupon',
  deleteOrganization: 'the slug',
  'updateOrganization with a slug': 'the slug'
}
