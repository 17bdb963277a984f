import t from 'tap'
import { coversAll, intersect, isInside, projectsInside, type Place, type Slice } from '../../src/rules/slices.ts'

// Small hierarchies, so that all places can be tried: two projects, each with two targets with two environments.
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

/** A repeatable sequence of numbers below 1. */
function chances (seed: number) {
  let state = seed
  return () => {
    state = (state * 48_271) % 2_147_483_647
    return state / 2_147_483_647
  }
}

t.test('a place is inside of an intersection exactly if it is inside of both lists', async (t) => {
  const chance = chances(29)
  const some = () => SLICES.filter(() => chance() < 0.15)
  let checked = 0
  for (let round = 0; round < 3_000; round++) {
    const [one, other] = [some(), some()]
    if (one.length === 0 || other.length === 0) continue
    const both = intersect(one, other)
    // Elsewhere, an empty list means that there are no restrictions.
    const inBoth = (place: Place) => both.length > 0 && isInside(both, place)
    for (const place of PLACES) {
      checked++
      if (inBoth(place) !== (isInside(one, place) && isInside(other, place))) {
        t.fail(JSON.stringify({ one, other, both, place }))
      }
    }
  }
  t.ok(checked > 50_000)
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
