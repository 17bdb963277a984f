/**
 * All rows of a list that answers a page at a time, however many there are.
 *
 * @param list the rows behind a place; none when there are no more
 * @param begin the place before the first
 */
export async function * allRows<Row, Place> (
  list: (after: Place) => Promise<Row[]>, begin: Place, placeOf: (row: Row) => Place
): AsyncGenerator<Row> {
  for (let after = begin; ;) {
    const page = await list(after)
    if (page.length === 0) return
    yield * page
    after = placeOf(page.at(-1)!)
  }
}
