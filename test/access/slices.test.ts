// runs: no database
import t from 'tap'
import { coversAll, inherits, intersect, isInside, projectsInside, type Place, type Slice } from '../../src/rules/slices.ts'

// Small hierarchies, so that the test can try all places: two projects with two targets each, which have two
// environments each.
const PLACES: Place[] = ['a', 'b'].flatMap((project_id) => [
  { project_id },
  ...['1', '2'].map((one) => project_id + one).flatMap((target_id) => [
    { project_id, target_id },
    ...['x', 'y'].flatMap((one) => [undefined, 'production', 'staging'].map((status) =>
      ({ project_id, target_id, environment_id: target_id + one, status })))
  ])
])

const SLICES: Slice[] = ['a', 'b'].flatMap((project_id) => [
  { project_id, target_id: null, environment_id: null },
  ...['1', '2'].map((one) => project_id + one).flatMap((target_id) => [
    { project_id, target_id, environment_id: null },
    ...['x', 'y'].map((one) => ({ project_id, target_id, environment_id: target_id + one }))
  ])
]).flatMap((slice) => [slice, { ...slice, except_status: 'production' as const }])
  .flatMap((slice) => [slice, { ...slice, inherited: true as const }])

/** A repeatable sequence of numbers below 1. */
function chances (seed: number) {
  let state = seed
  return () => {
    state = (state * 48_271) % 2_147_483_647
    return state / 2_147_483_647
  }
}

t.test('a place is inside of an intersection, or inherits by it, exactly if it is and does so by both lists', async (t) => {
  const chance = chances(29)
  const some = () => SLICES.filter(() => chance() < 0.08)
  let checked = 0
  for (let round = 0; round < 3_000; round++) {
    const [one, other] = [some(), some()]
    if (one.length === 0 || other.length === 0) continue
    const both = intersect(one, other)
    // Elsewhere, an empty list means that there are no restrictions.
    const inBoth = (place: Place) => both.length > 0 && isInside(both, place)
    const inheritsByBoth = (place: Place) => both.length > 0 && inherits(both, place)
    for (const place of PLACES) {
      checked++
      if (inBoth(place) !== (isInside(one, place) && isInside(other, place))) {
        t.fail(JSON.stringify({ one, other, both, place }))
      }
      if (inheritsByBoth(place) !== (inherits(one, place) && inherits(other, place))) {
        t.fail(JSON.stringify({ one, other, both, place, inherits: true }))
      }
    }
  }
  t.ok(checked > 50_000)
})

t.test('one list covers another exactly if no place is inside of, or inherits by, the other list alone', async (t) => {
  const chance = chances(31)
  const tokens = SLICES.filter(({ except_status }) => except_status === undefined)
  const found = { covered: 0, not: 0 }
  for (let round = 0; round < 20_000; round++) {
    const [outer, inner] = [tokens.filter(() => chance() < 0.1), tokens.filter(() => chance() < 0.1)]
    if (outer.length === 0 || inner.length === 0) continue
    // A restriction to a target or a project also includes the environments that are created later.
    const later = ['a', 'b'].flatMap((project_id) => [
      { project_id, target_id: 'later', environment_id: 'later' },
      ...['1', '2'].map((one) => ({ project_id, target_id: project_id + one, environment_id: 'later' }))
    ])
    const more = [...PLACES, ...later].some((place) =>
      (isInside(inner, place) && !isInside(outer, place)) || (inherits(inner, place) && !inherits(outer, place)))
    if (coversAll(outer, inner) === more) t.fail(JSON.stringify({ outer, inner }))
    found[more ? 'not' : 'covered']++
  }
  t.ok(found.covered > 200 && found.not > 200, JSON.stringify(found))
})

t.test('a restriction by status includes environments with another status alone', async (t) => {
  const slices: Slice[] = [{ project_id: 'a', target_id: null, environment_id: null, except_status: 'production' }]
  const inside = PLACES.filter((place) => isInside(slices, place))
  t.ok(inside.length > 0)
  t.ok(inside.every(({ project_id, status }) => project_id === 'a' && status === 'staging'))
  t.notOk(isInside(slices, { project_id: 'a', target_id: 'a1', environment_id: 'a1x', status: null }), 'without a status')
  t.strictSame(projectsInside(slices), [], 'it is no whole project')
  t.notOk(coversAll(slices, [{ project_id: 'a', target_id: 'a1', environment_id: 'a1x' }]), 'and covers no token')
  t.notOk(coversAll(slices, []))
})
