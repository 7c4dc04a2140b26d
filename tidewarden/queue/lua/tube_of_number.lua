-- tube_of_number: reads which queue is the tube of a number.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3 the tube's number (see job_numbers)
-- RETURNS the queue, or '' where no tube has the number
return redis.call('HGET', key('tubes'), '-' .. ARGV[3]) or ''
