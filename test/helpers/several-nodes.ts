/**
 * The operations with an API token that change a table of which each node of a Citus cluster has a copy, so that they
 * use several nodes and a two-phase commit, and what they change there. docs/scaling.md lists them, too.
 */
export const SEVERAL_NODES: Record<string, string> = {
  redeemCoupon: 'the number of redemptions of the coupon',
  deleteOrganization: 'the slug',
  'updateOrganization with a slug': 'the slug'
}
