-- ARGV: the value read, its replacement. Replaces a plain value, not a subscription, unless the value has changed.
if redis.call('GET', key) ~= ARGV[1] then return {'CHANGED'} end
redis.call('SET', key, ARGV[2])
return {'OK'}
